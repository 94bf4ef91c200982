"""Every dialect tells its official client why a prompt missed the cache.

The engine is a fake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

RULES = "You answer questions about the harbour, and you never guess. " * 4
DATED = "Today is {}. " + RULES
WHY = {"ratoon": {"explain": True}}
WEATHER, CLOCK, ALARM = (
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock", "alarm")
)


def chat(
    client: openai.OpenAI, system: str, *, extra: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """Send a question after `system`, or other messages in `fields`; return the answer."""
    asked = {"messages": [said("system", system), said("user", "Who?")], **fields}
    return client.chat.completions.create(model=MODEL, max_tokens=4, extra_body=extra, **asked)


def said(role: str, text: str) -> Any:
    return {"role": role, "content": text}


def why(answer: Any) -> dict[str, Any]:
    return {"ratoon": {"explain": True, "previous_id": answer.id}}


def miss_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.ratoon["cache_miss"]
    return found


def prompt_text(engine: FakeEngine, number: int) -> bytes:
    """Return the prompt of request `number`, one character for each token."""
    return bytes(min(one, 255) for one in prompt_of(engine.requests[number]))


@pytest.fixture
def claude(served: Served, engine: FakeEngine) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=served.url, api_key=served.key, max_retries=0, timeout=60
    ) as client:
        yield client


def test_a_date_in_the_system_prompt(client: openai.OpenAI, engine: FakeEngine) -> None:
    first = chat(client, DATED.format("2026-11-22"))
    assert not hasattr(first, "ratoon"), "nobody asked"
    miss = miss_of(chat(client, DATED.format("2026-11-23"), extra=WHY))
    assert miss["reason"] == "system_changed"
    assert (miss["part"], miss["change"]) == ("messages[0]", "date")
    before, after = (prompt_text(engine, number) for number in (-2, -1))
    assert before[: miss["token"]] == after[: miss["token"]]
    assert before[miss["token"]] != after[miss["token"]]
    assert "2026-11-22" in miss["before"]
    assert "2026-11-23" in miss["after"]
    assert len(miss["after"]) <= 80
    assert miss["compared_with"] == first.id.removeprefix("chatcmpl-")
    assert miss["reusable_tokens"] == len(before) // WELCOME.block_size * WELCOME.block_size
    assert miss["lost_tokens"] == miss["reusable_tokens"] - miss["cached_tokens"]
    computed = len(after) - miss["cached_tokens"]
    assert miss["lost_ms"] == pytest.approx(8 * miss["lost_tokens"] / computed, abs=0.001)
    assert "date" in miss["advice"]


def test_a_conversation_that_goes_on_has_missed_nothing(client: openai.OpenAI) -> None:
    chat(client, RULES)
    messages = [said("system", RULES), said("user", "Who?"), said("assistant", "I.")]
    miss = miss_of(chat(client, "", extra=WHY, messages=[*messages, said("user", "Why?")]))
    assert (miss["reason"], miss["lost_tokens"]) == ("none", 0)
    assert miss["part"] is miss["token"] is miss["advice"] is None


@pytest.mark.parametrize(
    ("tools", "change"),
    [
        ([CLOCK, WEATHER], "reordered"),
        ([WEATHER, CLOCK, ALARM], "added"),
        ([WEATHER], "removed"),
        ([], "removed"),
    ],
)
def test_tools_that_are_not_as_they_were(
    client: openai.OpenAI, tools: list[Any], change: str
) -> None:
    first = chat(client, RULES, tools=[WEATHER, CLOCK], tool_choice="none")
    sent: dict[str, Any] = {"tools": tools, "tool_choice": "none"} if tools else {}
    miss = miss_of(chat(client, RULES, extra=why(first), **sent))
    assert (miss["reason"], miss["change"]) == ("tools_changed", change)
    assert miss["part"].startswith("tools")


def test_a_tool_that_is_edited(client: openai.OpenAI) -> None:
    edited = {"type": "function", "function": {"name": "clock", "parameters": {"type": "string"}}}
    chat(client, RULES, tools=[WEATHER, CLOCK], tool_choice="none")
    miss = miss_of(chat(client, RULES, extra=WHY, tools=[WEATHER, edited], tool_choice="none"))
    assert (miss["reason"], miss["part"]) == ("tools_changed", "tools[1]")
    assert miss["change"] == "text"


def test_an_earlier_message_that_is_edited(client: openai.OpenAI) -> None:
    long = [said("user", f"Ship {number} comes in. " * 4) for number in range(4)]
    chat(client, "", messages=long)
    edited = [*long[:2], said("user", "Ship 9 comes in. " * 4), long[3]]
    miss = miss_of(chat(client, "", extra=WHY, messages=edited))
    assert (miss["reason"], miss["part"], miss["change"]) == (
        "messages_changed",
        "messages[2]",
        "number",
    )


def test_what_the_cache_gave_up(client: openai.OpenAI, engine: FakeEngine) -> None:
    chat(client, RULES)
    engine.lose_cache()
    miss = miss_of(chat(client, RULES, extra=WHY))
    assert (miss["reason"], miss["token"], miss["part"]) == ("evicted", 0, None)
    assert miss["lost_tokens"] == miss["reusable_tokens"] > 0
    again = miss_of(chat(client, RULES, extra=WHY))
    assert again["reason"] == "none", "the control"


def test_a_prompt_shorter_than_a_block(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Who?", max_tokens=1, extra_body=WHY)
    assert miss_of(answer)["reason"] == "below_minimum"


def test_a_prompt_like_none_before(client: openai.OpenAI) -> None:
    text = "0123456789" * 8
    for reason in ("never_seen", "none"):
        answer = client.completions.create(model=MODEL, prompt=text, max_tokens=1, extra_body=WHY)
        assert miss_of(answer)["reason"] == reason


def test_another_salt_is_told_only_of_what_is_named(client: openai.OpenAI) -> None:
    first = chat(client, RULES, extra={"cache_salt": "pepper"})
    other = {"cache_salt": "thyme", "ratoon": {"explain": True}}
    assert miss_of(chat(client, RULES, extra=other))["reason"] == "never_seen"
    other["ratoon"] = {"explain": True, "previous_id": first.id}
    miss = miss_of(chat(client, RULES + "!", extra=other))
    assert miss["reason"] == "salt_changed"
    for silent in ("part", "token", "before", "after", "reusable_tokens", "lost_tokens"):
        assert miss[silent] is None
    same = {"cache_salt": "pepper", "ratoon": {"explain": True, "previous_id": first.id}}
    assert miss_of(chat(client, RULES, extra=same))["reason"] == "none", "the control"


def test_another_model(client: openai.OpenAI, engine: FakeEngine) -> None:
    chat(client, RULES)
    engine.welcome = msgspec.structs.replace(WELCOME, fingerprint=b"another")
    assert miss_of(chat(client, RULES, extra=WHY))["reason"] == "model_changed"


def test_a_stream_says_it_in_its_first_chunk(client: openai.OpenAI) -> None:
    chat(client, DATED.format("2026-01-01"))
    chunks = list(chat(client, DATED.format("2026-01-02"), extra=WHY, stream=True))
    assert miss_of(chunks[0])["change"] == "date"
    assert chunks[0].choices
    assert not any(hasattr(chunk, "ratoon") for chunk in chunks[1:])


def test_completions(client: openai.OpenAI) -> None:
    texts = [f"Request 6a3f{number}c2d-1111-4222-8333-444455556666: {RULES}" for number in (1, 2)]
    client.completions.create(model=MODEL, prompt=texts[0], max_tokens=1)
    miss = miss_of(
        client.completions.create(model=MODEL, prompt=texts[1], max_tokens=1, extra_body=WHY)
    )
    assert (miss["reason"], miss["part"], miss["change"]) == ("messages_changed", "prompt", "uuid")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=texts, max_tokens=1, extra_body=WHY)
    assert refused.value.param == "ratoon.explain"


def test_responses(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Aye.")
    asked: dict[str, Any] = {"model": MODEL, "input": "Who?", "max_output_tokens": 9}
    client.responses.create(instructions=DATED.format("Monday 9:30 AM"), **asked)
    late = DATED.format("Monday 9:31 AM")
    answer = client.responses.create(instructions=late, extra_body=WHY, **asked)
    miss = miss_of(answer)
    assert (miss["reason"], miss["part"], miss["change"]) == (
        "system_changed",
        "instructions",
        "time",
    )
    with client.responses.stream(
        instructions=DATED.format("Monday 9:32 AM"), extra_body=WHY, **asked
    ) as stream:
        assert miss_of(stream.get_final_response())["change"] == "time"


BILLING = "x-anthropic-billing-header: cc_version=2.1.100.{}; cc_entrypoint=cli; cch=eb6c6;"
RELEASE = "You answer for release 2.1.100.{}."


def system_blocks(build: str, first: str = RELEASE) -> list[Any]:
    texts = (first.format(build), RULES)
    return [{"type": "text", "text": text} for text in texts]


def message(claude: anthropic.Anthropic, build: str, extra: dict[str, Any] | None = None) -> Any:
    return claude.messages.create(
        model=MODEL,
        max_tokens=4,
        system=system_blocks(build),
        messages=[said("user", "Who?")],
        extra_body=extra,
    )


def diagnosed(previous: str | None) -> dict[str, Any]:
    return {"diagnostics": {"previous_message_id": previous}}


def test_anthropics_diagnostics(claude: anthropic.Anthropic) -> None:
    first = message(claude, "7b4", diagnosed(None))
    assert first.diagnostics is None
    assert "diagnostics" in first.model_fields_set
    same = message(claude, "7b4", diagnosed(first.id))
    assert same.diagnostics is None
    changed = message(claude, "8c5", diagnosed(first.id))
    reason = changed.diagnostics.cache_miss_reason
    assert reason.type == "system_changed"
    whole = changed.usage.input_tokens + changed.usage.cache_read_input_tokens
    assert 0 < reason.cache_missed_input_tokens < whole
    unknown = message(claude, "8c5", diagnosed("msg_" + "0" * 32))
    assert unknown.diagnostics.to_dict() == {
        "cache_miss_reason": {"type": "previous_message_not_found"}
    }
    assert "diagnostics" not in message(claude, "8c5").model_fields_set, "nobody asked"
    assert not hasattr(unknown, "ratoon")


def test_messages_say_more_in_our_own_field(claude: anthropic.Anthropic) -> None:
    message(claude, "7b4")
    miss = miss_of(message(claude, "9d6", WHY))
    assert (miss["part"], miss["change"]) == ("system[0]", "number")


def test_the_billing_header_does_harm_but_in_messages(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    chat(client, f"{BILLING.format('7b4')}\n{RULES}")
    miss = miss_of(chat(client, f"{BILLING.format('9d6')}\n{RULES}", extra=WHY))
    assert (miss["reason"], miss["change"]) == ("system_changed", "billing_header")
    assert "/v1/messages" in miss["advice"]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": [said("user", "Who?")]}
    whole = [BILLING.format(build) + "\n" + RULES for build in ("7b4", "9d6")]
    pairs: list[list[Any]] = [
        [system_blocks("7b4", BILLING), system_blocks("9d6", BILLING)],
        [*whole],
        [[{"type": "text", "text": text}] for text in whole],
    ]
    for first, second in pairs:
        claude.messages.create(system=first, **asked)
        miss = miss_of(claude.messages.create(system=second, extra_body=WHY, **asked))
        assert (miss["reason"], miss["lost_tokens"]) == ("none", 0)
    edited = whole[1].replace("harbour", "airport")
    miss = miss_of(claude.messages.create(system=edited, extra_body=WHY, **asked))
    assert (miss["part"], miss["change"]) == ("system", "text"), "what follows it is shown"


def test_diagnostics_of_a_stream_are_in_its_start(claude: anthropic.Anthropic) -> None:
    first = message(claude, "7b4")
    with claude.messages.stream(
        model=MODEL,
        max_tokens=4,
        system=system_blocks("1a1"),
        messages=[said("user", "Who?")],
        extra_body=diagnosed(first.id),
    ) as stream:
        [start] = [event for event in stream if event.type == "message_start"]
    assert start.message.diagnostics is not None
    assert start.message.diagnostics.cache_miss_reason is not None
    assert start.message.diagnostics.cache_miss_reason.type == "system_changed"


CANARY = "the keel was laid by Wilhelmina"


def raw(served: Served, key: str, text: str, ratoon: dict[str, Any]) -> str:
    body = {
        "model": MODEL,
        "max_tokens": 4,
        "messages": [said("system", RULES), said("user", text)],
        "ratoon": {"explain": True, **ratoon},
    }
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{served.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200
    return answer.text


def test_nothing_of_one_tenant_is_in_the_answer_to_another(
    served: Served, engine: FakeEngine
) -> None:
    """Show nothing of one tenant's prompt to another.

    The two prompts differ in one word, so an excerpt would contain the other words of the first
    tenant's prompt.
    """
    engine.script = saying("Aye.")
    question = CANARY.replace("Wilhelmina", "somebody else, and nobody knows by whom") * 2
    named = json.loads(raw(served, served.key, CANARY * 2, {}))["id"]
    own = raw(served, served.key, question, {"previous_id": named})
    assert "Wilhelmina" in own, "the control: the tenant is shown its own"
    others = raw(served, served.other_key, question, {"previous_id": named})
    unknown = raw(served, served.other_key, question, {"previous_id": f"chatcmpl-{'0' * 32}"})
    alike = raw(served, served.other_key, question.upper(), {})
    assert "Wilhelmina" not in others + unknown + alike
    for answer in (others, unknown):
        miss = json.loads(answer)["ratoon"]["cache_miss"]
        assert (miss["reason"], miss["compared_with"]) == ("previous_not_found", None)
