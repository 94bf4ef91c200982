"""Agents in each dialect, and a gateway with a fake engine that replays recorded turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.config import Bounds
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.support.tool_models import ToolModel
from tests.gateway.turn_formats.turns import CLOCK, WEATHER

FORGETFUL = Bounds(max_tenant_turn_bytes=0)
SYSTEM = "You look up the weather, and you never guess. " * 30
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
    for tool in (WEATHER, CLOCK)
]
Turn = tuple[str, str, list[tuple[str, object]]]  # reasoning, text, calls


def asked(city: str) -> list[tuple[str, object]]:
    tags = [f"{city} {number}" for number in range(24)]
    return [("get_weather", {"city": city, "days": 3, "tags": tags})]


RECORDED: list[Turn] = [
    ("The user asks for Oslo, so I look it up.", "", asked("Oslo")),
    ("Then Bergen.", "", asked("Bergen")),
    ("And Tromsø, which is far in the north.", "", asked("Tromsø")),
    ("What time is it there? The clock says so.", "", asked("Bodø")),
    ("I have it all.", "It rains in all of them.", []),
]


@dataclass
class Used:
    """The token counts of one answer."""

    prompt: int
    cached: int
    answer: int
    counted: int  # tokens that the token-counting route reported before the request


@dataclass
class OpenAIAgent:
    """An agent for OpenAI's chat completions."""

    http: httpx.Client
    keeps_reasoning: bool = True
    salt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    system: str = SYSTEM
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = field(default_factory=lambda: TOOLS)

    def __post_init__(self) -> None:
        question = {"role": "user", "content": "Where does it rain?"}
        system = {"role": "system", "content": self.system}
        self.messages = self.messages or [system, question]

    def turn(self) -> Used:
        body: dict[str, Any] = {"model": MODEL, "messages": self.messages, "tools": self.tools}
        if self.salt is not None:
            body["cache_salt"] = self.salt
        counted = self._posted("/tokenize", body)["count"]
        reply = self._posted("/v1/chat/completions", {**body, **self.options})
        self._take(reply["choices"][0]["message"])
        usage = reply["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Used(usage["prompt_tokens"], cached, usage["completion_tokens"], counted)

    def said(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def _take(self, message: dict[str, Any]) -> None:
        """Append the answer as clients do, which parse the arguments and encode them again."""
        if not self.keeps_reasoning:
            message.pop("reasoning_content", None)
            message.pop("reasoning", None)
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]))
        self.messages.append(message)
        for call in message.get("tool_calls", ()):
            result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            self.messages.append(result)

    def _posted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply


@dataclass
class AnthropicAgent:
    """An agent for Anthropic's Messages."""

    http: httpx.Client
    keeps_reasoning: bool = True
    system: str = SYSTEM
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "user", "content": "Where does it rain?"}]
    )

    def turn(self) -> Used:
        prompt = {
            "model": MODEL,
            "system": self.system,
            "messages": self.messages,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [
                {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]}
                for one in TOOLS
                if one["function"]["parameters"]
            ],
        }
        counted = self._posted("/v1/messages/count_tokens", prompt)["input_tokens"]
        reply = self._posted("/v1/messages", {**prompt, "max_tokens": 4096})
        self._take(reply["content"])
        usage = reply["usage"]
        cached = usage["cache_read_input_tokens"]
        prompt_tokens = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
        return Used(prompt_tokens, cached, usage["output_tokens"], counted)

    def _take(self, content: list[dict[str, Any]]) -> None:
        kept = [one for one in content if self.keeps_reasoning or one["type"] != "thinking"]
        self.messages.append({"role": "assistant", "content": kept})
        results = [
            {"type": "tool_result", "tool_use_id": one["id"], "content": "rain"}
            for one in content
            if one["type"] == "tool_use"
        ]
        if results:
            self.messages.append({"role": "user", "content": results})

    def _posted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply


@dataclass
class ResponsesAgent:
    """An agent for OpenAI's Responses.

    If it sends reasoning back, it continues the stored response. Otherwise it sends all items
    again.
    """

    http: httpx.Client
    keeps_reasoning: bool = True
    system: str = SYSTEM
    items: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "user", "content": "Where does it rain?"}]
    )
    previous: str | None = None

    def turn(self) -> Used:
        tools = [{"type": "function", **one["function"]} for one in TOOLS]
        body: dict[str, Any] = {
            "model": MODEL,
            "instructions": self.system,
            "input": self.items,
            "tools": tools,
            "previous_response_id": self.previous,
        }
        probe = {"url": "/v1/responses", "body": body}
        counted = self._posted("/v1/cache/probe", probe)["prompt_tokens"]
        reply = self._posted("/v1/responses", body)
        self._take(reply)
        usage = reply["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return Used(usage["input_tokens"], cached, usage["output_tokens"], counted)

    def _take(self, reply: dict[str, Any]) -> None:
        calls = [one for one in reply["output"] if one["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": one["call_id"], "output": "rain"}
            for one in calls
        ]
        if self.keeps_reasoning:
            self.items, self.previous = results, reply["id"]
        else:
            kept = [one for one in reply["output"] if one["type"] != "reasoning"]
            self.items += [*kept, *results]

    def _posted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply


Agent = OpenAIAgent | AnthropicAgent | ResponsesAgent

AGENTS: dict[str, Callable[..., Agent]] = {
    "openai": OpenAIAgent,
    "anthropic": AnthropicAgent,
    "responses": ResponsesAgent,
}


@dataclass
class Stage:
    """A gateway with a fake engine that replays recorded turns."""

    model: ToolModel
    engine: FakeEngine
    served: Served

    def play(self, recording: list[Turn]) -> None:
        """Answer with these turns, in order."""
        self.play_tokens([self.written(turn) for turn in recording])

    def play_tokens(self, recording: list[list[int]]) -> None:
        """Answer with these tokens, in order."""
        self.engine.requests.clear()
        self.engine.script = lambda _: recording[len(self.engine.requests) - 1]

    def written(self, turn: Turn) -> list[int]:
        """Return the tokens of a turn."""
        reasoning, text, calls = turn
        return self.model.writes(reasoning, text, *calls)

    @contextmanager
    def client(self, key: str | None = None) -> Iterator[httpx.Client]:
        headers = {"authorization": f"Bearer {key or self.served.key}"}
        with httpx.Client(base_url=self.served.url, headers=headers, timeout=30) as http:
            yield http


@contextmanager
def staged(model: ToolModel, data_dir: Path, **settings: Any) -> Iterator[Stage]:
    engine = FakeEngine(model.welcome)
    engine.caches_answers, engine.per_step = True, 16
    config = config_of(model.directory, data_dir, tool_format=model.format_name or None, **settings)
    with serving(config, engine) as served:
        yield Stage(model, engine, served)
