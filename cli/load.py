"""Closed-loop load: each of several callers sends its next request when its last one has ended.

TTFT is from sending a request to its first chunk with content, ITL every gap between two such
chunks, E2E from sending to the end of the stream.

Knows: event streams and the clock. Does not know: the requests (`workload`), or what the outcomes
are used for (`report`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from cli.workload import Body

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request went, in seconds and tokens; `error` is a short code, or None."""

    e2e_s: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # None: the server did not say
    output_tokens: int = 0
    error: str | None = None
    sent_at: float = 0.0  # seconds of the sender's clock


@dataclass(slots=True)
class Transcript:
    """What one event stream has sent so far, and when.

    The chunk of a token that does not complete a character has no text; it counts only with
    `every_chunk`.
    """

    sent_at: float
    every_chunk: bool = False
    stamps: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    ended: bool = False

    def hear(self, line: bytes, at: float) -> None:
        """Process one line of the stream, received at `at`; only `data:` lines count."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.ended = True
            return
        event = msgspec.json.decode(data)
        if event.get("error"):
            self.error = f"stream {_code(event['error']) or 'error'}"
        if event.get("usage"):
            self.usage = event["usage"]
        choices = event.get("choices") or ()
        if choices and (self.every_chunk or any(_content(choice) for choice in choices)):
            self.stamps.append(at)

    def outcome(self, at: float) -> Outcome:
        """The outcome of the request, whose stream ended at `at`."""
        return Outcome(
            e2e_s=at - self.sent_at,
            ttft_s=self.stamps[0] - self.sent_at if self.stamps else None,
            gaps_s=tuple(b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)),
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            cached_tokens=(self.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            output_tokens=self.usage.get("completion_tokens", len(self.stamps)),
            error=self.error or (None if self.ended else "stream cut off"),
            sent_at=self.sent_at,
        )


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends requests over one session. `clock` gives seconds."""

    session: aiohttp.ClientSession
    url: str
    key: str
    clock: Clock = time.perf_counter
    every_chunk: bool = False  # as `Transcript`

    async def ask(self, body: Body) -> Outcome:
        """Send one body and read its stream to the end; errors of the server are outcomes."""
        content = msgspec.json.encode(body)  # before the clock starts: the sender's own work
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        sent_at = self.clock()
        try:
            async with self.session.post(self.url, data=content, headers=headers) as response:
                if response.status != 200:
                    error = refusal_code(response.status, await response.read())
                    return self._failed(sent_at, error)
                return await self._listen(response, Transcript(sent_at, self.every_chunk))
        except TimeoutError:
            return self._failed(sent_at, "timeout")
        except (aiohttp.ClientError, msgspec.DecodeError, ValueError) as error:
            return self._failed(sent_at, type(error).__name__)

    def _failed(self, sent_at: float, error: str) -> Outcome:
        return Outcome(e2e_s=self.clock() - sent_at, error=error, sent_at=sent_at)

    async def _listen(self, response: aiohttp.ClientResponse, transcript: Transcript) -> Outcome:
        async for line in response.content:
            transcript.hear(line, self.clock())
        return transcript.outcome(self.clock())


async def closed_loop(
    bodies: Sequence[Body],
    concurrency: int,
    ask: Callable[[Body], Awaitable[Outcome]],
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Send all `bodies`, at most `concurrency` at once; outcomes in the order they ended."""
    waiting, outcomes = deque(bodies), list[Outcome]()

    async def keep_asking() -> None:
        while waiting:
            outcome = await ask(waiting.popleft())
            outcomes.append(outcome)
            on_outcome(outcome)

    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(bodies))):
            callers.create_task(keep_asking())
    return outcomes


def refusal_code(status: int, content: bytes) -> str:
    """A short name for an answer that is not 200: its status, and its error code if it has one."""
    try:
        answer = msgspec.json.decode(content)
    except msgspec.DecodeError:
        answer = None
    code = _code(answer.get("error")) if isinstance(answer, dict) else None
    return f"{status} {code}" if code else str(status)


def _code(error: Any) -> str | None:
    return error.get("code") if isinstance(error, dict) else None


def _content(choice: dict[str, Any]) -> bool:
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))
