"""The time to first token of an agent's turn, compared with a plain completion of its tokens.

    python -m benchmarks.gateway.agent_turns [--rounds 8] [--repeats 100]

A server with the handbook model gets a conversation that ends with a tool's result. The
conversation is sent alternately as a chat with tools and as a completion of the same token ids. All
blocks but the last are cached in both cases, and one token is generated. So the difference is the
time for reading, rendering and tokenising the conversation. Target: at most 3 ms more.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks.record import emit, p50_and_p99
from benchmarks.running import running
from tests.doubles.engine.shapes import model_directory

START_S = 60.0
HANDBOOK = " ".join(
    f"The support code for Berlin {place} is {1000 + place}." for place in range(40)
)
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a fact up.",
        "parameters": {
            "type": "object",
            "properties": {"subject": {"type": "string"}, "field": {"type": "string"}},
            "required": ["subject", "field"],
        },
    },
}


def conversation(rounds: int) -> list[dict[str, Any]]:
    """Write a chat whose rounds have a question, a call, a result and an answer.

    The last round has no answer.
    """
    said: list[dict[str, Any]] = [{"role": "system", "content": HANDBOOK}]
    for place in range(rounds):
        arguments = json.dumps({"subject": f"Oslo {place}", "field": "door code"})
        call = {"name": "lookup", "arguments": arguments}
        said += [
            {"role": "user", "content": f"What is the door code for Oslo {place}?"},
            {
                "role": "assistant",
                "tool_calls": [{"id": f"call_{place}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{place}", "content": f"{2000 + place}"},
            {"role": "assistant", "content": f"{2000 + place}"},
        ]
    return said[:-1]


def main(
    rounds: Annotated[int, typer.Option(help="Of question, call and result.")] = 8,
    repeats: Annotated[int, typer.Option(help="Of each request.")] = 100,
) -> None:
    """Print a JSON line for each kind of request, and a line for their difference."""
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = model_directory("handbook", Path(scratch))
        with running(directory, Path(scratch, "data"), start_s=START_S) as server:
            headers = {"Authorization": f"Bearer {server.key}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
                _compare(client, server.model(), rounds, repeats)


def _compare(client: httpx.Client, model: str, rounds: int, repeats: int) -> None:
    chat = {"model": model, "messages": conversation(rounds), "tools": [TOOL]}
    tokens = client.post("/tokenize", json=chat).raise_for_status().json()["tokens"]
    ways = {
        "chat with tools": ("/v1/chat/completions", chat),
        "completion of the same tokens": ("/v1/completions", {"model": model, "prompt": tokens}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, (path, body) in ways.items():
            took = _seconds(client, path, {**body, "max_tokens": 1, "temperature": 0})
            if repeat:
                seconds[name].append(took)
    found = {name: p50_and_p99(each) for name, each in seconds.items()}
    for name, times in found.items():
        emit(name, prompt_tokens=len(tokens), repeats=repeats, **times)
    first, second = (times["p50_ms"] for times in found.values())
    emit("a chat takes longer by", p50_ms=first - second)


def _seconds(client: httpx.Client, path: str, body: object) -> float:
    began = time.perf_counter()
    client.post(path, json=body).raise_for_status()
    return time.perf_counter() - began


if __name__ == "__main__":
    typer.run(main)
