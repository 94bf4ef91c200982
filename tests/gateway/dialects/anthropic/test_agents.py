"""Agents' requests, some of whose fields are accepted without effect.

The body has Claude Code's form. `docs/reference/http-api.md` lists the ignored fields, and why.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import (
    CALL,
    CLOCK,
    HI,
    USE,
    assistant,
    post,
    shown,
    user,
)

MARK = {"type": "ephemeral", "ttl": "1h"}
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,of-tomorrow-2031-01-01",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.0.14 (external, cli)",
    "x-app": "cli",
    "x-stainless-retry-count": "0",
}
TOOL: dict[str, Any] = {
    **CLOCK,
    "eager_input_streaming": True,
    "defer_loading": False,
    "input_examples": [{"zone": "UTC"}],
    "allowed_callers": ["direct"],
    "x-of-tomorrow": {"deep": [1]},
}
AGENT: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32_000,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_1_account__session_2"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0.14; cch=1a2b3;"},
        {"type": "text", "text": "You are an agent.", "cache_control": MARK},
        {"type": "text", "text": "Rules. " * 100, "cache_control": MARK},
    ],
    "messages": [
        user(
            [
                {"type": "text", "text": "<system-reminder>None.</system-reminder>"},
                {"type": "text", "text": "What time is it?", "cache_control": MARK},
            ]
        ),
        assistant([{"type": "thinking", "thinking": "I look.", "signature": "sig"}, USE]),
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "noon"}],
                    "cache_control": MARK,
                }
            ]
        ),
    ],
    "tools": [TOOL, {"name": "alarm", "description": "rings", "input_schema": {"type": "object"}}],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "service_tier": "auto",
    "inference_geo": None,
    "speed": None,
    "diagnostics": {"previous_message_id": None},
    "of_tomorrow": {"deep": [1]},
}


def test_an_agents_request_is_served(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying(f"So.</think>{CALL}")
    answer = http.post("/v1/messages?beta=true", json=AGENT, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    assert answer.text.startswith("event: message_start\n")
    assert '"stop_reason":"tool_use"' in answer.text
    assert "event: message_stop" in answer.text
    [request] = engine.requests
    assert request.sampling.max_tokens == WELCOME.max_model_len - len(prompt_of(request))
    prompt = shown(engine)
    for said in (
        "You are an agent.",
        "<think>I look.</think>",
        "tool:clock:noon",
    ):
        assert said in prompt
    for unsaid in ("ephemeral", "tomorrow", "session_2", "clear_thinking", "sig", "billing"):
        assert unsaid not in prompt
    assert prompt.endswith("|assistant:effort=high<think>")


def test_another_session_of_an_agent_finds_what_it_was_told(
    http: httpx.Client, engine: FakeEngine
) -> None:
    def session(release: str, *, is_header: bool) -> int:
        said = f"x-anthropic-billing-header: cc_version=2.1.197.{release}; cc_entrypoint=cli;"
        first = {"type": "text", "text": said if is_header else f"Of {said}"}
        body = {**AGENT, "stream": False, "system": [first, *AGENT["system"][1:]]}
        usage = http.post("/v1/messages", json=body, headers=HEADERS).json()["usage"]
        return int(usage["cache_read_input_tokens"])

    engine.script = saying("x")
    session("0df", is_header=True)
    assert session("707", is_header=True) > 700
    session("0df", is_header=False)
    # only the tools are cached, since text that is no billing header is an instruction
    assert session("707", is_header=False) < 400


def test_its_tokens_are_counted(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("x")
    asked = {name: one for name, one in AGENT.items() if name not in ("max_tokens", "stream")}
    counted = http.post("/v1/messages/count_tokens?beta=true", json=asked, headers=HEADERS)
    usage = http.post("/v1/messages", json={**AGENT, "stream": False}).json()["usage"]
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert counted.json() == {"input_tokens": sum(usage[kind] for kind in kinds)}


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2031-01-01"}, HEADERS])
def test_any_version_is_served(
    http: httpx.Client, engine: FakeEngine, headers: dict[str, str]
) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": AGENT["messages"]}
    assert http.post("/v1/messages", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "ignored",
    [
        {"metadata": {"user_id": None}},
        {"metadata": {"user_id": "x", "more": 1}},
        {"service_tier": "standard_only"},
        {"speed": "fast"},
        {"fallbacks": [{"model": "another"}]},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"diagnostics": {"previous_message_id": "msg_1"}},
        {"cache_control": {"type": "ephemeral"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1}},
        {"stop_sequences": []},
        {"tools": []},
        {"betas": ["x"]},
    ],
    ids=str,
)
def test_what_is_ignored_changes_no_prompt(
    http: httpx.Client, engine: FakeEngine, ignored: dict[str, Any]
) -> None:
    thinking = ignored.get("thinking") and {"type": "adaptive"}
    assert post(http, thinking=thinking).status_code == 200
    prompt = shown(engine)
    assert post(http, **ignored).status_code == 200
    assert shown(engine) == prompt


def test_the_beta_client(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.script = saying(CALL)
    tools: list[Any] = [CLOCK]
    answer = claude.beta.messages.create(
        model=MODEL,
        max_tokens=400,
        messages=HI,
        tools=tools,
        betas=["context-management-2025-06-27"],
        context_management={"edits": []},
    )
    [block] = answer.content
    assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
