"""One request at a time through any entry point, and what its usage says of the cache.

Knows: the bodies of the entry points, retries of a busy server. Does not know: tests.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from cli.admin_client import error_message, unreachable
from cli.errors import ServerRefused
from cli.isolation.cells import EntryPoint

_BUSY = (429, 503)
_TRIES, _LONGEST_PAUSE_S = 8, 5.0


class Prompt(msgspec.Struct, frozen=True):
    """A text that was never sent before, and the ids of its tokens.

    `opening` is its published beginning: a chat's system message, or the beginning of a text.
    The ids are those of opening and text together.
    """

    text: str
    ids: list[int]
    opening: str = ""


class Reading(msgspec.Struct, frozen=True):
    """The usage of one answer, in tokens; `tiers` is where the cached ones were."""

    prompt_tokens: int
    cached_tokens: int
    tiers: dict[str, int] = {}

    def is_full(self, block_size: int) -> bool:
        """Whether all whole blocks came from the cache (the last token is always computed)."""
        return self.cached_tokens >= (self.prompt_tokens - 1) // block_size * block_size


class Asker:
    """Sends requests to one server, with any tenant's key."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        as_operator: Mapping[str, str] | None = None,
    ) -> None:
        """With the headers `as_operator`, blocks are loaded where the server would compute."""
        self._session = session
        self.url = url
        self.model = model
        self._as_operator = as_operator or {}

    async def ask(
        self, key: str, entry: EntryPoint, prompt: Prompt, fields: Mapping[str, Any] | None = None
    ) -> Reading:
        """One request for one token; ServerRefused when it is refused for good."""
        body = self.body(entry, prompt, fields)
        return reading_of(await self._post(entry.path, key, body), stream=entry.stream)

    def headers(self, key: str) -> dict[str, str]:
        """The headers of a request of the tenant with this key."""
        return {"Authorization": f"Bearer {key}", **self._as_operator}

    def body(
        self, entry: EntryPoint, prompt: Prompt, fields: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The JSON body of a request for one token."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if entry.kind == "chat":
            body["messages"] = [*opening_messages(prompt.opening), _message("user", prompt.text)]
        else:
            whole = prompt.opening + prompt.text
            body["prompt"] = whole if entry.kind == "text" else prompt.ids
        if entry.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self._as_operator:
            body["cache"] = {"load": "always"}
        return {**body, **(fields or {})}

    async def tokens(self, key: str, text: str) -> list[int]:
        """The ids of a text's tokens."""
        ids: list[int] = msgspec.json.decode(await self._post("/tokenize", key, {"prompt": text}))[
            "tokens"
        ]
        return ids

    async def fresh_prompt(self, key: str, length: int) -> Prompt:
        """A prompt of `length` tokens or a few more, of words that were never asked."""
        text, ids = "", list[int]()
        while len(ids) < length:
            missing = length - len(ids)
            text += "".join(f"{secrets.token_hex(3)} " for _ in range(missing // 6 + 1))
            ids = await self.tokens(key, text)
        return Prompt(text, ids)

    async def behind(self, key: str, opening: str, length: int) -> Prompt:
        """A fresh prompt of `length` tokens or a few more that follow `opening`."""
        text = (await self.fresh_prompt(key, length)).text
        return Prompt(text, await self.tokens(key, opening + text), opening)

    async def _post(self, path: str, key: str, body: dict[str, Any]) -> bytes:
        headers = self.headers(key)
        for attempt in range(_TRIES):
            try:
                async with self._session.post(self.url + path, json=body, headers=headers) as reply:
                    content = await reply.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise unreachable(self.url, error) from error
            if reply.status == 200:
                return content
            if reply.status not in _BUSY or attempt == _TRIES - 1:
                break
            await asyncio.sleep(_pause(reply.headers.get("Retry-After")))
        raise ServerRefused(error_message(content, reply.status), status=reply.status)


def opening_messages(opening: str) -> list[dict[str, str]]:
    """The messages that a chat with this opening begins with."""
    return [_message("system", opening)] if opening else []


def reading_of(content: bytes, *, stream: bool) -> Reading:
    """The usage in an answer, or in the stream of one; ServerRefused when it has none."""
    answers = _events(content) if stream else [msgspec.json.decode(content)]
    for answer in answers:
        if answer.get("usage"):
            usage = answer["usage"]
            details = usage.get("prompt_tokens_details") or {}
            return Reading(
                usage["prompt_tokens"], details.get("cached_tokens", 0), details.get("ratoon") or {}
            )
    raise ServerRefused("an answer ended without its usage", status=200)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _events(content: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix(b"data:").strip() for line in content.splitlines() if line)
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{")]


def _pause(retry_after: str | None) -> float:
    try:
        return min(float(retry_after or 1.0), _LONGEST_PAUSE_S)
    except ValueError:
        return 1.0
