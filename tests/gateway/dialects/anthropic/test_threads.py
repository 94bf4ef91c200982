"""In a thread, the client sends only new messages, and the model reads all of them.

The gateway stores threads in a file or in Redis. The official client asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import beta_tool

from engine.errors import EngineFailure
from gateway.config import Bounds
from gateway.dialects.anthropic.schema import ContinuedThread
from gateway.dialects.anthropic.threads import Threads
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import GatewayError
from gateway.http.body_memory import BodyMemory
from tests.doubles.engine.fake_engine import (
    FakeEngine,
    at_once,
    failing_at,
    hanging_at,
    saying,
)
from tests.doubles.gateway.redis_server import RedisServer
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.conftest import BOUNDS
from tests.gateway.dialects.anthropic.asking import (
    ALARM,
    CALL,
    CLOCK,
    assistant,
    error_of,
    events_of,
    post,
    shown,
    user,
)
from tests.gateway.state.contract import a_tenant
from tests.gateway.state.memory_store import MemoryStore

SYSTEM = "Tell the time. " * 4
CREATE = {"type": "create"}
INVALID, MISSING = "invalid_request_error", "not_found_error"
PREVIOUS = "thread.previous_message_id"


@pytest.fixture(scope="module")
def home(redis: RedisServer | None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings of gateways that share state and keys in Redis, or no settings for a
    file.
    """
    if redis is None:
        return {}
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "ratoon_server_secret").write_text("s" * 64)
    (secrets / "ratoon_pepper").write_text("p" * 64)
    (secrets / "ratoon_admin_key").write_text("sk-admin-of-all-gateways")
    return {"redis_url": redis.url, "redis_timeout_s": 5.0, "secrets_dir": str(secrets)}


@pytest.fixture(scope="module")
def served(
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    module_engine: FakeEngine,
    home: dict[str, Any],
) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("data")
    with serving(config_of(tiny_model, data, bounds=BOUNDS, **home), module_engine) as gateway:
        yield gateway


def continuing(message_id: str) -> dict[str, str]:
    """Return the `thread` field that continues a stored message."""
    return {"type": "continue", "previous_message_id": message_id}


def created(http: httpx.Client, **fields: Any) -> str:
    """Create a thread; return its first answer's id."""
    answer = post(http, thread=CREATE, **fields)
    assert answer.status_code == 200, answer.text
    message_id: str = answer.json()["id"]
    return message_id


def continued(http: httpx.Client, message_id: str, said: Any = "more", **fields: Any) -> Any:
    """Continue a stored message; return the answer."""
    return post(http, thread=continuing(message_id), messages=[user(said)], **fields)


def a_thread(client: anthropic.Anthropic, **fields: Any) -> Any:
    """Make a thread of the client's own helper class, which sends only new messages."""
    return client.beta.messages.thread(**{"model": MODEL, **fields})


@contextmanager
def running(http: httpx.Client, message_id: str) -> Iterator[None]:
    """Run a stream that continues a message and has begun; disconnect its client at the end."""
    body = {
        "model": MODEL,
        "max_tokens": 9,
        "stream": True,
        "thread": continuing(message_id),
        "messages": [user("more")],
    }
    with http.stream("POST", "/v1/messages", json=body) as begun:
        assert begun.status_code == 200
        yield


def until_free(http: httpx.Client, message_id: str) -> httpx.Response:
    """Continue a message as soon as the running request that continues it has ended."""
    for _ in range(500):
        answer: httpx.Response = continued(http, message_id)
        if "thread_continue_in_flight" not in answer.text:
            break
        time.sleep(0.02)
    return answer


def refused(answer: httpx.Response) -> tuple[str, Any]:
    """Return the error code that refuses a thread, and the field that the error names."""
    status = 404 if answer.status_code == 404 else 400
    error = error_of(answer, status, MISSING if status == 404 else INVALID)
    return error["code"], error["param"]


def text_of(message: Any) -> str:
    """Return a message's last text."""
    said: str = message.content[-1].text
    return said


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_sends_what_is_new_and_the_model_sees_all(
    claude: anthropic.Anthropic, engine: FakeEngine, stream: bool
) -> None:
    thread = a_thread(claude, max_tokens=400, system=SYSTEM, thinking={"type": "adaptive"})
    sent: list[Any] = []

    def send(said: str, answer: str) -> Any:
        engine.script = saying(answer)
        if not stream:
            return thread.send(user(said))
        with thread.stream(user(said)) as events:
            return events.get_final_message()

    for number in range(3):
        answer = send(f"And {number}?", f"hm {number}</think>It is {number}.")
        assert text_of(answer) == f"It is {number}."
        assert thread.previous_message_id == answer.id
        sent.append(shown(engine))
    for number, prompt in enumerate(sent):
        before = "".join(
            f"|user:And {n}?|assistant:<think>hm {n}</think>It is {n}." for n in range(number)
        )
        assert prompt == f"|system:{SYSTEM}{before}|user:And {number}?|assistant:<think>"
    whole = claude.beta.messages.create(
        model=MODEL,
        max_tokens=400,
        system=SYSTEM,
        thinking={"type": "adaptive"},
        messages=[*thread.messages[:-1]],
    )
    assert shown(engine) == sent[-1]
    cached = whole.usage.cache_read_input_tokens or 0
    assert cached > 0
    assert (answer.usage.cache_read_input_tokens or 0) >= len(sent[-2]) // 16 * 16


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_their_results_go_over_turns(
    claude: anthropic.Anthropic, engine: FakeEngine, stream: bool
) -> None:
    @beta_tool
    def clock(zone: str) -> str:
        """Tells the time.

        Args:
            zone: where
        """
        return f"noon in {zone}"

    answers = iter([f"Wait.{CALL}", "It is noon."])
    engine.script = lambda request: saying(next(answers))(request)
    thread = a_thread(claude, max_tokens=400, tools=[clock])
    thread.append(user("When?"))
    if stream:
        for events in thread.tool_runner(stream=True):
            message: Any = events.get_final_message()
    else:
        message = thread.tool_runner().until_done()
    assert text_of(message) == "It is noon."
    assert len(engine.requests) == 2
    assert shown(engine).endswith(
        "|user:When?|assistant:Wait."
        '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>'
        "|tool:clock:noon in UTC|assistant:"
    )
    assert "tells" not in shown(engine)
    assert "Tells the time." in shown(engine)


def test_the_ids_of_calls_are_those_that_the_client_has(
    http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = saying(CALL * 2)
    for stream in (False, True):
        answer = post(http, thread=CREATE, tools=[CLOCK], stream=stream)
        if stream:
            told = [value for name, value in events_of(answer) if name == "content_block_start"]
            ids = [value["content_block"]["id"] for value in told]
            message_id = events_of(answer)[0][1]["message"]["id"]
        else:
            ids = [block["id"] for block in answer.json()["content"]]
            message_id = answer.json()["id"]
        results = [
            {"type": "tool_result", "tool_use_id": one, "content": f"{place}"}
            for place, one in enumerate(ids)
        ]
        assert continued(http, message_id, results).status_code == 200
        assert shown(engine).endswith("|tool:clock:0|tool:clock:1|assistant:")


def test_thinking_that_is_not_shown_is_held(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("secret</think>Hi.")
    thinking = {"type": "adaptive", "display": "omitted"}
    answer = post(http, thread=CREATE, thinking=thinking).json()
    assert "secret" not in str(answer)
    assert continued(http, answer["id"], thinking=thinking).status_code == 200
    assert "<think>secret</think>Hi." in shown(engine)


def test_system_and_tools_belong_to_a_thread(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    marked = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    own = {"system": marked, "tools": [CLOCK]}
    first = created(http, **own)
    same = continued(http, first, system=SYSTEM, tools=[{**CLOCK, "citations": None}])
    assert same.status_code == 200, same.text
    assert shown(engine).count(SYSTEM) == 1
    second = same.json()["id"]
    for fields, name in (
        ({"system": "Lie."}, "system"),
        ({"tools": [ALARM]}, "tools"),
        ({"tools": []}, "tools"),
        ({"system": "Lie.", "tools": [ALARM]}, "system"),
    ):
        answer = continued(http, second, **fields)
        assert refused(answer) == ("thread_fingerprint_mismatch", name)
        assert all(f"`{one}`" in answer.json()["error"]["message"] for one in fields)
    assert continued(http, second).status_code == 200, "the control: what is refused claims nothing"


def test_a_thread_of_another_model_is_refused_by_its_name(
    http: httpx.Client, engine: FakeEngine
) -> None:
    first = created(http)
    error = error_of(continued(http, first, model="other"), 404, MISSING)
    assert error["code"] == "model_not_found"


def test_a_message_is_continued_once(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    first = created(http)
    second = continued(http, first)
    assert second.status_code == 200, "the control"
    assert refused(continued(http, first)) == ("thread_already_continued", PREVIOUS)
    assert continued(http, second.json()["id"]).status_code == 200


def test_one_request_continues_a_message_at_a_time(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    first = created(http)
    engine.pace = hanging_at(1)
    with running(http, first):
        assert refused(continued(http, first)) == ("thread_continue_in_flight", PREVIOUS)
        counted = post(
            http,
            "/v1/messages/count_tokens",
            max_tokens=None,
            thread=continuing(first),
            messages=[user("more")],
        )
        assert counted.status_code == 200, "counting claims nothing"
    engine.pace = at_once
    assert until_free(http, first).status_code == 200, "a client that has gone may try again"


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_fails_may_be_sent_again(
    http: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    engine.script = saying("ok")
    first = created(http)
    engine.pace = failing_at(1, EngineFailure("broken"))
    failed = continued(http, first, stream=stream)
    assert "engine_failure" in failed.text
    engine.pace = at_once
    assert continued(http, first, stream=stream).status_code == 200
    assert shown(engine) == "|user:hi|assistant:ok|user:more|assistant:"


@pytest.mark.parametrize(
    "message_id", ["msg_0", "x" * 128, "resp_0", "cachedContents/0", "after_msg_0", "é", "msg_%"]
)
def test_an_unknown_message_is_not_found(
    http: httpx.Client, engine: FakeEngine, message_id: str
) -> None:
    assert refused(continued(http, message_id)) == ("thread_not_found", PREVIOUS)
    assert not engine.requests


def test_a_message_without_a_thread_is_not_held(http: httpx.Client, engine: FakeEngine) -> None:
    answer = post(http).json()
    assert refused(continued(http, answer["id"])) == ("thread_not_found", PREVIOUS)


def test_a_thread_is_its_tenant_s_alone(
    served: Served, http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = saying("canary-77")
    first = created(http, messages=[user("canary-41")])
    headers = {"x-api-key": served.other_key}
    with httpx.Client(base_url=served.url, headers=headers, timeout=20) as stranger:
        unknown = continued(stranger, "msg_0")
        stolen = continued(stranger, first)
        assert refused(stolen) == refused(unknown) == ("thread_not_found", PREVIOUS)
        assert stolen.json()["error"] == unknown.json()["error"]
        assert len(engine.requests) == 1
        theirs = created(stranger)
        assert refused(continued(http, theirs))[0] == "thread_not_found"
        assert continued(stranger, theirs).status_code == 200
        assert "canary-41" not in shown(engine)
    assert continued(http, first).status_code == 200, "the control"
    assert "canary-41" in shown(engine)


def test_a_thread_is_no_response(served: Served, http: httpx.Client, engine: FakeEngine) -> None:
    first = created(http)
    headers = {"authorization": f"Bearer {served.key}"}
    for name in (first, f"after_{first}"):
        for method in ("GET", "DELETE"):
            answer = httpx.request(method, f"{served.url}/v1/responses/{name}", headers=headers)
            assert answer.json()["error"]["code"] == "response_not_found"
    assert continued(http, first).status_code == 200, "the control"


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_replays_a_thread_that_was_lost(
    served: Served, engine: FakeEngine, stream: bool
) -> None:
    office = httpx.Client(
        base_url=served.url, headers={"authorization": f"Bearer {served.admin_key}"}, timeout=20
    )
    tenant = office.post("/admin/tenants", json={"name": f"lost-{stream}"}).json()["id"]
    key = office.post(f"/admin/tenants/{tenant}/keys", json={}).json()["key"]
    engine.script = saying("ok")
    with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0) as client:
        thread = a_thread(client, max_tokens=9)
        first = thread.send(user("one"))
        office.post(f"/admin/tenants/{tenant}/disable")
        office.post(f"/admin/tenants/{tenant}/enable")
        if stream:
            with thread.stream(user("two")) as events:
                events.get_final_message()
        else:
            thread.send(user("two"))
        assert shown(engine) == "|user:one|assistant:ok|user:two|assistant:"
        thread.send(user("three"))
        assert shown(engine).endswith("|user:two|assistant:ok|user:three|assistant:")
        with httpx.Client(base_url=served.url, headers={"x-api-key": key}, timeout=20) as mine:
            assert refused(continued(mine, first.id))[0] == "thread_not_found"
    office.close()


def test_tokens_are_counted_over_the_whole_thread(
    served: Served, http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = saying("ok" * 30)
    first = created(http, system=SYSTEM)
    asked = {"thread": continuing(first), "messages": [user("more")], "max_tokens": None}
    counted = post(http, "/v1/messages/count_tokens", **asked).json()["input_tokens"]
    probe = {"url": "/v1/messages", "body": {"model": MODEL, **asked, "max_tokens": 1}}
    headers = {"authorization": f"Bearer {served.key}"}
    probed = httpx.post(f"{served.url}/v1/cache/probe", json=probe, headers=headers).json()
    assert probed["prompt_tokens"] == counted
    usage = continued(http, first).json()["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
    assert len(shown(engine)) + 1 == counted


def test_breakpoints_of_earlier_turns_do_not_count(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    marked = [{"type": "text", "text": "more " * 9, "cache_control": {"type": "ephemeral"}}]
    message_id = created(http, messages=[user(marked)], system=marked)
    for _ in range(5):
        answer = continued(http, message_id, marked)
        assert answer.status_code == 200, answer.text
        assert len(engine.requests[-1].marks) == 2
        message_id = answer.json()["id"]
    too_many = continued(http, message_id, marked * 4)
    assert too_many.status_code == 400, "the control"


def test_an_answer_that_was_cut_off_goes_on_without_a_message(
    http: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = saying("It is noon.")
    first = created(http, max_tokens=6)
    answer = post(http, thread=continuing(first), messages=[])
    assert answer.status_code == 200, answer.text
    assert shown(engine) == "|user:hi|assistant:It is "
    answer = continued(http, answer.json()["id"])
    assert shown(engine).startswith("|user:hi|assistant:It is It is noon.|user:more")
    error = error_of(post(http, messages=[]), 400, INVALID)
    assert error["param"] == "messages", "the control"


def test_a_prompt_alone_creates_a_thread(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    first = created(http, max_tokens=0)
    assert continued(http, first).status_code == 200
    assert shown(engine) == "|user:hi\nmore|assistant:"


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        (Bounds(response_ttl_s=0), "hi"),
        (Bounds(max_response_bytes=1000), "x" * 2000),
    ],
)
def test_clients_send_all_where_no_thread_can_be_held(
    tiny_model: Path, tmp_path: Path, bounds: Bounds, said: str
) -> None:
    own = FakeEngine()
    own.script = saying("ok")
    with (
        serving(config_of(tiny_model, tmp_path, bounds=bounds), own) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as client,
    ):
        strict = a_thread(client, max_tokens=9)
        with pytest.raises(anthropic.BadRequestError) as raised:
            strict.send(user(said))
        assert raised.value.body["error"]["details"] == {  # type: ignore[index]
            "error_code": "thread_unsupported_request"
        }
        assert not own.requests
        thread = a_thread(client, max_tokens=9, unsupported_request_behavior="continue_unthreaded")
        thread.send(user(said))
        thread.send(user("more"))
        assert shown(own) == f"|user:{said}|assistant:ok|user:more|assistant:"


def test_what_a_thread_holds_counts_in_its_tenant_s_room(tiny_model: Path, tmp_path: Path) -> None:
    own, bounds = FakeEngine(), Bounds(max_tenant_response_bytes=9000)
    own.script = saying("ok")
    with (
        serving(config_of(tiny_model, tmp_path, bounds=bounds), own) as gateway,
        httpx.Client(base_url=gateway.url, headers={"x-api-key": gateway.key}, timeout=20) as http,
    ):
        made = [created(http, messages=[user("x" * 2000)]) for _ in range(6)]
        assert refused(continued(http, made[0]))[0] == "thread_not_found"
        assert continued(http, made[-1]).status_code == 200, "the control"


async def test_a_thread_is_held_for_an_hour() -> None:
    store, now = MemoryStore(), [100.0]
    await store.create(a_tenant())
    threads = Threads(StoredRecords(store, Bounds(), lambda: now[0]))
    tenant_id, thread = a_tenant().id, ContinuedThread(previous_message_id="msg_1")
    content = b'{"asked":{"model":"m","system":null,"tools":null,"messages":[]},"answer":[]}'
    await threads.keep(tenant_id, "msg_1", content)
    with BodyMemory(Bounds()).lease(tenant_id) as body:
        now[0] += 3599
        assert await threads.before(thread, tenant_id, body) is not None
        now[0] += 1
        with pytest.raises(GatewayError) as raised:
            await threads.before(thread, tenant_id, body)
        assert raised.value.code == "thread_not_found"
        assert body.size == len(content)


def test_gateways_share_threads(
    tiny_model: Path,
    tmp_path: Path,
    http: httpx.Client,
    home: dict[str, Any],
    engine: FakeEngine,
) -> None:
    if not home:
        pytest.skip("a file is one gateway's")
    engine.script = saying("ok")
    first = created(http)
    other = FakeEngine()
    other.script = saying("so")
    with (
        serving(config_of(tiny_model, tmp_path, bounds=BOUNDS, **home), other) as beside,
        httpx.Client(base_url=beside.url, headers={"x-api-key": beside.key}, timeout=20) as there,
    ):
        second = continued(there, first)
        assert second.status_code == 200, second.text
        assert shown(other) == "|user:hi|assistant:ok|user:more|assistant:"
        assert refused(continued(http, first)) == ("thread_already_continued", PREVIOUS)
        third = continued(http, second.json()["id"], "yet more")
        assert shown(engine).endswith("|user:more|assistant:so|user:yet more|assistant:")
        engine.pace = hanging_at(1)
        with running(http, third.json()["id"]):
            in_flight = continued(there, third.json()["id"])
            assert refused(in_flight) == ("thread_continue_in_flight", PREVIOUS)
        assert until_free(there, third.json()["id"]).status_code == 200, "the control"


def test_turns_of_the_assistant_may_be_given(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    first = created(http)
    answer = post(
        http,
        thread=continuing(first),
        messages=[user("more"), assistant("It"), user("Go on")],
    )
    assert answer.status_code == 200
    assert shown(engine) == "|user:hi|assistant:ok|user:more|assistant:It|user:Go on|assistant:"
