"""A small server of token streams whose chunks are sent at scripted times."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Script:
    """A scripted answer to one request. A number among `chunks` is a wait, in seconds."""

    chunks: Sequence[float | str | dict[str, Any]] = ("a", "b", "c")
    status: int = 200
    usage: dict[str, Any] | None = None
    done: bool = True


def usage(prompt: int, output: int, cached: int | None = 0) -> dict[str, Any]:
    """Return a usage record in OpenAI's form."""
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": output, **details}


@dataclass
class OpenAIDouble:
    """A server that answers request n with script n, and later requests with the last script."""

    scripts: Sequence[Script] = (Script(),)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    running: int = 0
    most_running: int = 0

    def app(self) -> web.Application:
        """Return the application to serve."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == "Bearer wrong":
            error = {"message": "The key is not valid.", "code": "invalid_api_key"}
            return web.json_response({"error": error}, status=401)
        return web.json_response({"data": [{"id": "tiny"}, {"id": "other"}]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        script = self.scripts[min(len(self.bodies), len(self.scripts) - 1)]
        self.bodies.append(await request.json())
        self.keys.add(request.headers.get("Authorization", ""))
        if script.status != 200:
            error = {"message": "no", "code": "rate_limit_exceeded"}
            return web.json_response({"error": error}, status=script.status)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._stream(request, script)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, script: Script) -> web.StreamResponse:
        chat = "chat" in request.path
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in script.chunks:
            if isinstance(chunk, float):
                await asyncio.sleep(chunk)
            else:
                await _send(response, chunk if isinstance(chunk, dict) else _event(chunk, chat))
        if script.usage is not None:
            await _send(response, {"choices": [], "usage": script.usage})
        if script.done:
            await response.write(b"data: [DONE]\n\n")
        return response


def _event(text: str, chat: bool) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}} if chat else {"text": text}]}


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
