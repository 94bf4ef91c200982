"""A server of known latency: every answer streams its tokens at a fixed pace.

The model that a request names says which kind of answer it has: `plain`, `reasoning` (two thirds
of it thought) or `calls` (a word, then the arguments of one call). The first token is due after
`FIRST_S` and each other one `STEP_S` later, counted from the request, so that a late one does not
delay the next.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

from aiohttp import web

FIRST_S = 0.1
STEP_S = 0.01
PROMPT_TOKENS = 128
KINDS = ("plain", "reasoning", "calls")


def deltas(kind: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the deltas of one answer's chunks, one delta for each token."""
    for number in range(tokens):
        if kind == "reasoning" and 3 * number < 2 * tokens:
            yield {"reasoning": "word ", "reasoning_content": "word "}
        elif kind == "calls" and number == 1:
            function = {"name": "look", "arguments": ""}
            yield _call({"id": "call_1", "type": "function", "function": function})
        elif kind == "calls" and number > 1:
            yield _call({"function": {"arguments": '{"a": '}})
        else:
            yield {"content": "word "}


def _call(part: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, **part}]}


async def chat(request: web.Request) -> web.StreamResponse:
    """Stream an answer of `max_tokens` tokens; other fields of the request are ignored."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    body = await request.json()
    tokens = int(body.get("max_completion_tokens") or body["max_tokens"])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def say(delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await response.write(_event(body["model"], [choice]))

    await say({"role": "assistant", "content": ""})
    for number, delta in enumerate(deltas(body["model"], tokens)):
        await asyncio.sleep(begun + FIRST_S + number * STEP_S - loop.time())
        await say(delta)
    await say({}, "length")
    total = PROMPT_TOKENS + tokens
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": total}
    await response.write(_event(body["model"], [], usage=usage) + b"data: [DONE]\n\n")
    return response


def _event(model: str, choices: list[Any], **more: Any) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    return b"data: " + json.dumps({**chunk, "choices": choices, **more}).encode() + b"\n\n"


async def models(_: web.Request) -> web.Response:
    """List the kinds of answers as models."""
    return web.json_response({"object": "list", "data": [{"id": kind} for kind in KINDS]})


if __name__ == "__main__":
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
