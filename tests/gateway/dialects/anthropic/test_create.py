"""Unstreamed messages with the official client: content blocks, stop reasons, and usage."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from gateway.dialects.anthropic.replies import StopReason
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, parrot, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import (
    ALARM,
    CALL,
    CLOCK,
    HI,
    ask,
    assistant,
    blocks_of,
    prompt_for,
    shown,
    user,
)


def test_a_message(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = saying("Hello, you.")
    answer = ask(claude)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert answer.id.startswith("msg_")
    [block] = blocks_of(answer)
    assert (block.type, block.text) == ("text", "Hello, you.")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 12)
    assert answer._request_id == answer.id.removeprefix("msg_")
    assert shown(engine) == "|user:hi|assistant:"


def test_sampling_reaches_the_engine(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    ask(claude)
    default = engine.requests[-1].sampling
    assert (default.temperature, default.top_p, default.top_k) == (1.0, 1.0, 0)
    ask(claude, extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 7})
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert sampling.max_tokens == 400


def test_blocks_come_in_the_order_in_which_they_were_written(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    second = CALL.replace("UTC", "CET")
    engine.script = saying(f"It is late?</think>\n\nLet me see.\n{CALL}\n{second}")
    answer = ask(claude, tools=[CLOCK], thinking={"type": "enabled", "budget_tokens": 1024})
    thinking, text, first, other = blocks_of(answer)
    assert (thinking.type, thinking.thinking) == ("thinking", "It is late?")
    assert thinking.signature == "unsigned"
    assert (text.type, text.text) == ("text", "Let me see.")
    assert (first.type, first.name, first.input) == ("tool_use", "clock", {"zone": "UTC"})
    assert (other.type, other.name, other.input) == ("tool_use", "clock", {"zone": "CET"})
    assert first.id != other.id
    assert first.id.startswith("toolu_")
    assert answer.stop_reason == "tool_use"
    details = answer.usage.output_tokens_details
    assert details is not None
    assert 0 < details.thinking_tokens < answer.usage.output_tokens


@pytest.mark.parametrize("depth", [50, 2000])
def test_arguments_that_nest_too_deep_are_an_error(
    claude: anthropic.Anthropic, engine: FakeEngine, depth: int
) -> None:
    deep = "[" * depth + "]" * depth
    engine.script = saying(CALL.replace('"UTC"', deep))
    if depth == 50:
        [call] = blocks_of(ask(claude, tools=[CLOCK], max_tokens=5000))
        assert call.input["zone"][0][0] is not None
    else:
        with pytest.raises(anthropic.BadRequestError, match="nested too deep"):
            ask(claude, tools=[CLOCK], max_tokens=5000)


def test_thinking_that_is_not_wanted_is_not_shown(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("secret</think>Yes.")
    answer = ask(claude, thinking={"type": "adaptive", "display": "omitted"})
    thinking, text = blocks_of(answer)
    assert (thinking.type, thinking.thinking) == ("thinking", "")
    assert (text.type, text.text) == ("text", "Yes.")
    details = answer.usage.output_tokens_details
    assert details is not None
    assert details.thinking_tokens > len("secret"), "it was thought all the same"


@pytest.mark.parametrize(
    ("thinking", "opens"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "between_tools"}, False),
        ({"type": "enabled", "budget_tokens": 1024}, True),
    ],
)
def test_the_model_thinks_if_it_is_asked_to(
    claude: anthropic.Anthropic, engine: FakeEngine, thinking: object, opens: bool
) -> None:
    ask(claude, **({} if thinking is None else {"thinking": thinking}))
    assert shown(engine) == "|user:hi|assistant:" + ("<think>" if opens else "")


def test_updates_between_calls_stay_text_and_the_answer_says_so(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("I look." + CALL)
    answer: Any = ask(claude, thinking={"type": "between_tools"}, tools=[CLOCK])
    assert [block.type for block in answer.content] == ["text", "tool_use"]
    [told] = answer.ratoon["ignored"]
    assert (told["param"], told["type"]) == ("thinking.type", "between_tools")
    assert not hasattr(ask(claude, thinking={"type": "disabled"}, tools=[CLOCK]), "ratoon")


def test_effort_reaches_the_template(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    assert prompt_for(engine, claude, user("hi"), output_config={"effort": "high"}).endswith(
        "|assistant:effort=high"
    )


@pytest.mark.parametrize(
    ("said", "max_tokens", "reason", "stop"),
    [
        ("all in it", 400, "end_turn", None),
        ("all of it", 3, "max_tokens", None),
        ("all of it", 8, "stop_sequence", "of"),
        (CALL, 400, "tool_use", None),
        (CALL, 50, "max_tokens", None),
        ("x" * 5000, 100_000, "model_context_window_exceeded", None),
    ],
)
def test_why_it_ended(
    claude: anthropic.Anthropic,
    engine: FakeEngine,
    said: str,
    max_tokens: int,
    reason: StopReason,
    stop: str | None,
) -> None:
    engine.script = saying(said)
    answer = ask(claude, max_tokens=max_tokens, stop_sequences=["of"], tools=[CLOCK])
    assert (answer.stop_reason, answer.stop_sequence) == (reason, stop)


def test_a_stop_sequence_is_not_in_the_text(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("one STOP two")
    answer = ask(claude, stop_sequences=["three", "STOP"])
    assert [block.text for block in blocks_of(answer)] == ["one "]


def test_more_than_the_context_leaves_is_cut_to_that(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    ask(claude, max_tokens=20_000)
    [request] = engine.requests
    assert request.sampling.max_tokens == WELCOME.max_model_len - len(prompt_of(request))


def test_an_answer_of_nothing_has_no_blocks(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("")
    assert ask(claude).content == []


def test_the_last_turn_is_continued(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = saying(" Oslo.")
    answer = ask(claude, messages=[*HI, assistant([{"type": "text", "text": "It is in"}])])
    assert shown(engine) == "|user:hi|assistant:It is in"
    [block] = blocks_of(answer)
    assert block.type == "text"
    assert block.text == " Oslo.", "what was given is not repeated"


def test_an_empty_last_turn_is_none(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = saying("x")
    for empty in ("", [], [{"type": "text", "text": ""}]):
        assert prompt_for(engine, claude, *HI, assistant(empty)) == "|user:hi|assistant:"


def test_cached_tokens_are_not_input(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = parrot
    first, second = (ask(claude, messages=[user("x" * 100)]).usage for _ in range(2))
    assert (first.input_tokens, first.cache_read_input_tokens) == (118, 0)
    assert (second.input_tokens, second.cache_read_input_tokens) == (118 - 112, 112)
    for usage in (first, second):
        assert usage.cache_creation_input_tokens == 0
        assert usage.cache_creation is not None
        assert usage.cache_creation.ephemeral_5m_input_tokens == 0
        assert usage.cache_creation.ephemeral_1h_input_tokens == 0
        assert (usage.service_tier, usage.inference_geo) == ("standard", None)
        assert usage.to_dict()["speed"] == "standard"
        assert usage.server_tool_use is not None
        assert usage.server_tool_use.web_search_requests == 0


def test_a_schema_is_a_grammar(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    format_ = {"type": "json_schema", "schema": schema}
    asked: list[Any] = [
        {"output_config": {"format": format_}},
        {"extra_body": {"output_format": format_}},
    ]
    for fields in asked:
        ask(claude, **fields)
        grammar = engine.requests[-1].sampling.grammar
        assert grammar is not None
        assert "integer" in grammar.text
    ask(claude)
    assert engine.requests[-1].sampling.grammar is None, "the control"
    anything: Any = {"format": {"type": "json_schema", "schema": True}}
    ask(claude, output_config=anything)
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert '["json_schema","true"]' in grammar.text


def test_tokens_are_counted_as_they_are_used(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    engine.script = saying("x")
    asked: list[Any] = [
        {"messages": HI},
        {"messages": [*HI, assistant("It is")]},
        {"messages": HI, "system": "be brief", "thinking": {"type": "adaptive"}},
        {"messages": HI, "tools": [CLOCK, ALARM], "tool_choice": {"type": "any"}},
        {
            "messages": [
                user("what time is it? " + "x" * 200),
                assistant(
                    [
                        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": "UTC"}},
                    ]
                ),
                user([{"type": "tool_result", "tool_use_id": "a", "content": "noon"}]),
            ],
            "tools": [CLOCK],
        },
    ]
    for fields in asked:
        counted = claude.messages.count_tokens(model=MODEL, **fields).input_tokens
        for read in (False, True):
            usage = ask(claude, **fields).usage
            cached = usage.cache_read_input_tokens or 0
            assert usage.input_tokens + (usage.cache_creation_input_tokens or 0) + cached == counted
            assert cached > 0 or not read or counted <= 16


def test_models(claude: anthropic.Anthropic) -> None:
    [model] = list(claude.models.list())
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert (model.lifecycle, model.max_input_tokens) == ("active", WELCOME.max_model_len)
    assert model.created_at.year > 2000
    assert claude.models.retrieve(MODEL) == model
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("another")
