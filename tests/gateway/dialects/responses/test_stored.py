"""Stored responses: a tenant can continue, reference, list and delete its own, and no other tenant
can.

Tested with both stores of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from gateway.config import Bounds
from gateway.dialects.responses.stored import Content, StoredResponses
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import BadRequest, NotFound, StateDiskFull, TooManyRequests, Unavailable
from gateway.http.body_memory import BodyMemory
from gateway.state.records import ResponseRoom, StoredResponse
from tests.doubles.engine.fake_engine import FakeEngine, at_once, hanging_at, saying
from tests.doubles.gateway.redis_server import RedisServer
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.dialects.responses.test_create import CALL, CLOCK, prompt
from tests.gateway.state.contract import a_tenant
from tests.gateway.state.memory_store import MemoryStore

ROOM = Bounds(max_response_bytes=20_000, max_tenant_response_bytes=20_000)


@pytest.fixture(scope="module")
def served(
    hermes_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    module_engine: FakeEngine,
    redis: RedisServer | None,
) -> Iterator[Served]:
    home = {} if redis is None else {"redis_url": redis.url, "redis_timeout_s": 5.0}
    data = tmp_path_factory.mktemp("data")
    with serving(config_of(hermes_model, data, bounds=ROOM, **home), module_engine) as gateway:
        yield gateway


@pytest.fixture
def other(served: Served, client: openai.OpenAI) -> openai.OpenAI:
    """Return another tenant's client."""
    return client.with_options(api_key=served.other_key)


@dataclass
class Office:
    """The operator, who creates tenants."""

    http: httpx.Client
    client: openai.OpenAI

    def tenant(self, name: str) -> tuple[str, openai.OpenAI]:
        made = self.http.post("/admin/tenants", json={"name": name}).json()["id"]
        key = self.http.post(f"/admin/tenants/{made}/keys", json={}).json()["key"]
        return made, self.client.with_options(api_key=key)


@pytest.fixture
def office(served: Served, client: openai.OpenAI) -> Iterator[Office]:
    headers = {"authorization": f"Bearer {served.admin_key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as http:
        yield Office(http, client)


def ask(client: openai.OpenAI, said: Any = "Hi", **asked: Any) -> Any:
    return client.responses.create(model=MODEL, input=said, **asked)


def is_gone(client: openai.OpenAI, response_id: str) -> bool:
    """Check that every route refuses a response's id, with the message for an unknown id."""
    for attempt in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            attempt(response_id)
        assert refused.value.code == "response_not_found"
        assert response_id not in refused.value.message
    with pytest.raises(openai.BadRequestError) as unknown:
        ask(client, previous_response_id=response_id)
    assert unknown.value.code == "previous_response_not_found"
    assert unknown.value.param == "previous_response_id"
    return True


def is_there(client: openai.OpenAI, response_id: str) -> bool:
    """Return whether a response can be retrieved."""
    try:
        client.responses.retrieve(response_id)
    except openai.NotFoundError:
        return False
    return True


def test_a_response_is_retrieved_as_it_was_answered(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying(f"<think>hm</think>I look.{CALL}")
    answer = ask(client, tools=[CLOCK], instructions="Be brief", metadata={"k": "v"})
    assert answer.to_dict()["store"] is True
    assert client.responses.retrieve(answer.id).to_dict() == answer.to_dict()
    with client.responses.stream(model=MODEL, input="x") as stream:
        streamed = stream.get_final_response()
    assert client.responses.retrieve(streamed.id).output_text == streamed.output_text


def test_a_response_is_continued(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(f"I look.{CALL}")
    first = ask(client, "When?", tools=[CLOCK], instructions="Be brief")
    output: Any = [
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "noon"}
    ]
    engine.script = saying("At noon.")
    second = ask(client, output, previous_response_id=first.id)
    assert prompt(engine) == f"|user:When?|assistant:I look.{CALL}|tool:noon|assistant:"
    assert second.previous_response_id == first.id
    third = ask(client, "Sure?", previous_response_id=second.id, instructions="Be long")
    whole = f"|user:When?|assistant:I look.{CALL}|tool:noon|assistant:At noon.|user:Sure?"
    assert prompt(engine) == f"|system:Be long{whole}|assistant:"
    for gone in (first, second):
        client.responses.delete(gone.id)
    ask(client, "Why?", previous_response_id=third.id, store=False)
    assert prompt(engine) == f"{whole}|assistant:At noon.|user:Why?|assistant:"
    ask(client, "Or?", previous_response_id=third.id)  # another branch of the conversation
    assert prompt(engine) == f"{whole}|assistant:At noon.|user:Or?|assistant:"


def test_a_continued_prompt_is_found_in_the_cache(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("y" * 100)
    first = ask(client, "x" * 100)
    engine.script = saying("z")
    usage = ask(client, "?", previous_response_id=first.id).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens >= 100


def test_items_are_listed(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(CALL)
    first = ask(client, "When?", tools=[CLOCK])
    output: Any = [
        {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "noon"}
    ]
    engine.script = saying("Noon.")
    second = ask(client, output, previous_response_id=first.id)
    listed = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
    assert listed[0].to_dict()["content"] == [{"type": "input_text", "text": "When?"}]
    assert listed[1].to_dict() == first.output[0].to_dict()
    ids = [item.id for item in listed]
    assert len(set(ids)) == 3
    backwards: Any = client.responses.input_items.list(second.id, limit=2)
    assert [item.id for item in backwards.data] == ids[:0:-1]
    assert (backwards.has_more, backwards.first_id, backwards.last_id) == (True, ids[2], ids[1])
    assert [item.id for item in client.responses.input_items.list(second.id, limit=1)] == ids[::-1]
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "msg_0"}):
        with pytest.raises(openai.BadRequestError):
            client.responses.input_items.list(second.id, **wrong)
    assert client.responses.input_items.list(second.id, after=ids[0]).data == []


def test_items_are_referred_to(
    client: openai.OpenAI, other: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying(f"<think>hm</think>I look.{CALL}")
    first = ask(client, "When?", tools=[CLOCK])
    asked = client.responses.input_items.list(first.id).data[0]
    items: Any = [
        {"type": "item_reference", "id": asked.id},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "noon"},
    ]
    engine.script = saying("Noon.")
    ask(client, items)
    assert prompt(engine) == (
        f"|user:When?|assistant:<think>hm</think>I look.{CALL}|tool:noon|assistant:"
    )
    with pytest.raises(openai.BadRequestError) as refused:
        ask(other, items)
    assert (refused.value.code, refused.value.param) == ("item_not_found", "input[0].id")


def test_an_item_is_referred_to_once(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Noon.")
    first = ask(client, "When?")
    item: Any = {"type": "item_reference", "id": first.output[0].id}
    more: Any = {"role": "user", "content": "Sure?"}
    assert ask(client, [item, more]).output_text == "Noon.", "the control"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, [item, item, more])
    assert refused.value.param == "input"


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = ask(client, store=False)
    assert answer.to_dict()["store"] is False
    assert is_gone(client, answer.id)
    assert is_there(client, ask(client).id), "the control"


def test_a_deleted_response_is_gone(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = ask(client)
    deleted = client.delete(f"/responses/{answer.id}", cast_to=object)
    assert deleted == {"id": answer.id, "object": "response", "deleted": True}
    assert is_gone(client, answer.id)


@pytest.mark.parametrize("response_id", ["resp_0", "x" * 1000, "é", "a:b", "resp_%00"])
def test_an_unknown_response_is_not_found(
    client: openai.OpenAI, engine: FakeEngine, response_id: str
) -> None:
    assert is_gone(client, response_id)


def test_a_response_that_has_ended_is_neither_cancelled_nor_streamed(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("ok")
    answer = ask(client)
    with pytest.raises(openai.BadRequestError) as cancelled:
        client.responses.cancel(answer.id)
    assert cancelled.value.code == "response_not_cancellable"
    with pytest.raises(openai.BadRequestError) as streamed:
        client.responses.retrieve(answer.id, stream=True)
    assert streamed.value.param == "stream"


def test_no_tenant_sees_another_s(
    client: openai.OpenAI, other: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("canary-answer-77")
    mine = ask(client, "canary-question-41", instructions="canary-rule-12", metadata={"c": "y-9"})
    assert is_gone(other, mine.id)
    engine.script = saying("ok")
    theirs = ask(other, "Hi")
    for shown in (
        other.responses.retrieve(theirs.id).to_json(),
        other.responses.input_items.list(theirs.id).to_json(),
        prompt(engine),
    ):
        assert "canary" not in shown
    assert "canary-answer-77" in client.responses.retrieve(mine.id).to_json()  # positive control
    assert "canary-question-41" in client.responses.input_items.list(mine.id).to_json()


@pytest.mark.parametrize("change", ["delete", "disable"])
def test_responses_go_with_their_tenant(office: Office, engine: FakeEngine, change: str) -> None:
    engine.script = saying("ok")
    tenant, client = office.tenant(f"to-{change}")
    _, bystander = office.tenant(f"beside-{change}")
    ids = [ask(client).id, ask(client).id]
    safe = ask(bystander).id
    if change == "delete":
        office.http.delete(f"/admin/tenants/{tenant}")
    else:
        office.http.post(f"/admin/tenants/{tenant}/disable")
        office.http.post(f"/admin/tenants/{tenant}/enable")
        assert all(is_gone(client, one) for one in ids)
        client.responses.retrieve(ask(client).id)
    bystander.responses.retrieve(safe)


def test_a_tenant_s_oldest_responses_make_room(office: Office, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    _, client = office.tenant("full")
    _, bystander = office.tenant("beside-full")
    safe = ask(bystander).id
    ids = [ask(client, "x" * 3000).id for _ in range(8)]
    there = [is_there(client, one) for one in ids]
    assert there == sorted(there), "the oldest go first"
    assert (there[0], there[-1]) == (False, True)
    assert sum(there) * 3000 < ROOM.max_tenant_response_bytes
    bystander.responses.retrieve(safe)


def test_what_is_too_large_says_that_it_is_not_stored(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("ok")
    parts = [{"type": "input_text", "text": "x"}]
    metadata = {f"{number}": "x" * 512 for number in range(16)}
    for times, more in ((700, {}), (450, {"metadata": metadata})):
        said = [{"role": "user", "content": parts * times}]
        answer = ask(client, said, **more)
        assert answer.to_dict()["store"] is False
        assert is_gone(client, answer.id)
    assert is_there(client, ask(client, said).id), "the control"


async def test_a_response_expires() -> None:
    store, now = MemoryStore(), [100.0]
    await store.create(a_tenant())
    stored = StoredResponses(StoredRecords(store, Bounds(response_ttl_s=60.0), lambda: now[0]))
    content = Content(msgspec.Raw(b'{"output":[]}'), msgspec.Raw(b"[]"))
    assert await stored.keep(a_tenant().id, "resp_1", 100.0, content)
    now[0] = 159.0
    memory = BodyMemory(Bounds())
    with memory.lease(a_tenant().id) as body:
        assert await stored.find(a_tenant().id, "resp_1", body) == content
        assert len(memory) == len(msgspec.json.encode(content))
        now[0] = 160.0
        with pytest.raises(NotFound):
            await stored.find(a_tenant().id, "resp_1", body)
        with pytest.raises(BadRequest, match="to continue"):
            await stored.continued(a_tenant().id, "resp_1", body)
        assert len(memory) == len(msgspec.json.encode(content))


async def test_a_response_is_read_once_there_is_room_for_it() -> None:
    class Reading(MemoryStore):
        reads = 0

        async def find_response(
            self, tenant_id: str, response_id: str, *, now: float
        ) -> StoredResponse:
            self.reads += 1
            return await super().find_response(tenant_id, response_id, now=now)

    store = Reading()
    await store.create(a_tenant())
    bounds = Bounds(max_response_bytes=600, max_tenant_body_bytes=1000, body_wait_s=0.01)
    stored = StoredResponses(StoredRecords(store, bounds, lambda: 0.0))
    memory = BodyMemory(bounds)
    content = Content(msgspec.Raw(b'{"output":[]}'), msgspec.Raw(b"[]"))
    assert await stored.keep(a_tenant().id, "resp_1", 0.0, content)
    with memory.lease(a_tenant().id) as other, memory.lease(a_tenant().id) as body:
        await other.grow(500)
        with pytest.raises(TooManyRequests):
            await stored.find(a_tenant().id, "resp_1", body)
        assert (store.reads, len(memory)) == (0, 500)
        other.shrink(400)
        assert await stored.find(a_tenant().id, "resp_1", body) == content
        assert (store.reads, len(memory)) == (1, 400 + len(msgspec.json.encode(content)))
    assert len(memory) == 0


@pytest.mark.parametrize("error", [Unavailable("away"), StateDiskFull()])
async def test_a_state_that_is_away_costs_no_answer(error: Unavailable) -> None:
    class Away(MemoryStore):
        async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
            raise error

    stored = StoredResponses(StoredRecords(Away(), Bounds(), lambda: 0.0))
    content = Content(msgspec.Raw(b"{}"), msgspec.Raw(b"[]"))
    assert await stored.keep("tn_1", "resp_1", 0.0, content) is False


def test_a_server_may_store_nothing(
    hermes_model: Path, tmp_path: Path, client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("ok")
    bounds = Bounds(response_ttl_s=0.0)
    with serving(config_of(hermes_model, tmp_path, bounds=bounds), engine) as served:
        mine = client.with_options(base_url=f"{served.url}/v1", api_key=served.key)
        with mine.responses.create(model=MODEL, input="x", stream=True) as stream:
            events: list[Any] = list(stream)
        for event in (events[0], events[-1]):
            assert event.response.to_dict()["store"] is False
        assert is_gone(mine, events[0].response.id)


def test_what_an_answer_needs_at_its_end_is_bounded(
    hermes_model: Path, tmp_path: Path, client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script, engine.pace = saying("ok"), hanging_at(1)
    bounds = Bounds(max_body_bytes=4000, max_tenant_body_bytes=4000, body_wait_s=0.1)
    with serving(config_of(hermes_model, tmp_path, bounds=bounds), engine) as served:
        mine = client.with_options(base_url=f"{served.url}/v1", api_key=served.key)
        other = client.with_options(base_url=f"{served.url}/v1", api_key=served.other_key)
        with mine.responses.create(model=MODEL, input="x" * 2000, stream=True) as running:
            next(iter(running))
            with pytest.raises(openai.RateLimitError) as refused:
                ask(mine, "x" * 2000)
            assert refused.value.code == "too_many_body_bytes"
            with other.responses.create(model=MODEL, input="x" * 2000, stream=True) as theirs:
                next(iter(theirs))  # positive control
        assert engine.wait_until(lambda engine: engine.running == 0)
        engine.pace = at_once
        assert served.wait_idle()
        assert ask(mine, "x" * 2000).output_text == "ok"


def test_what_is_looked_up_takes_memory_for_bodies(
    hermes_model: Path, tmp_path: Path, client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("ok")
    bounds = Bounds(max_body_bytes=4000, max_tenant_body_bytes=4000, body_wait_s=0.1)
    with serving(config_of(hermes_model, tmp_path, bounds=bounds), engine) as served:
        mine = client.with_options(base_url=f"{served.url}/v1", api_key=served.key)
        short, long = ask(mine, "x"), ask(mine, "x" * 2000)
        assert ask(mine, previous_response_id=short.id).output_text == "ok", "the control"
        refer: Any = [{"type": "item_reference", "id": one.output[0].id} for one in (short, long)]
        for asked in ({"said": refer}, {"previous_response_id": long.id, "said": "y" * 3000}):
            with pytest.raises(openai.RateLimitError) as refused:
                ask(mine, **asked)
            assert refused.value.code == "too_many_body_bytes"


def test_what_is_shown_of_stored_responses_counts_until_it_is_sent(
    hermes_model: Path, tmp_path: Path, client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("ok")
    bounds = Bounds(max_answer_bytes=20_000)
    with serving(config_of(hermes_model, tmp_path, bounds=bounds), engine) as served:
        mine = client.with_options(base_url=f"{served.url}/v1", api_key=served.key)
        part = {"type": "input_text", "text": "x"}
        fits, large = (
            ask(mine, [{"role": "user", "content": [part] * count}]) for count in (100, 1500)
        )
        shown = mine.responses.input_items.list(fits.id).model_dump_json()
        assert shown.count("input_text") == 100, "the control"
        with pytest.raises(openai.BadRequestError) as refused:
            mine.responses.input_items.list(large.id)
        assert refused.value.code == "answer_too_large"
