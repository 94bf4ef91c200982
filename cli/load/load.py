"""Closed-loop load: each of several callers sends its next request when its last one has ended.

TTFT is from sending a request to its first chunk with content, ITL every gap between two such
chunks, E2E from sending to the end of the stream.

One Python process can read about 10,000 chunks a second; a server sends twice as many. So the
chains of a workload are distributed among processes, each with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain as joined
from itertools import repeat
from typing import Any

import aiohttp
import msgspec

from cli.load.phases import Chain, LoadPhase, prompts_of

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

Body = dict[str, Any]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The server to load, the model to name, and the seconds of silence that fail a request."""

    url: str
    key: str
    model: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RequestOutcome:
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

    def outcome(self, at: float) -> RequestOutcome:
        """The outcome of the request, whose stream ended at `at`."""
        return RequestOutcome(
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

    async def ask(self, body: Body) -> RequestOutcome:
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

    def _failed(self, sent_at: float, error: str) -> RequestOutcome:
        return RequestOutcome(e2e_s=self.clock() - sent_at, error=error, sent_at=sent_at)

    async def _listen(
        self, response: aiohttp.ClientResponse, transcript: Transcript
    ) -> RequestOutcome:
        async for line in response.content:
            transcript.hear(line, self.clock())
        return transcript.outcome(self.clock())


async def closed_loop(
    chains: Iterable[Iterable[Body]],
    concurrency: int,
    ask: Callable[[Body], Awaitable[RequestOutcome]],
    on_outcome: Callable[[RequestOutcome], None] = lambda _: None,
) -> list[RequestOutcome]:
    """Send each chain's bodies one after the other, at most `concurrency` chains at once.

    An error ends its chain. Returns the outcomes in the order they ended.
    """
    outcomes, waiting = list[RequestOutcome](), deque(chains)

    async def keep_asking() -> None:
        while waiting:
            for body in waiting.popleft():
                outcome = await ask(body)
                outcomes.append(outcome)
                on_outcome(outcome)
                if outcome.error is not None:
                    break

    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(waiting))):
            callers.create_task(keep_asking())
    return outcomes


def drive(
    phase: LoadPhase, server: LoadTarget, processes: int
) -> tuple[list[RequestOutcome], float]:
    """Run a phase; its outcomes, and the seconds from the first request to the last end."""
    count = max(min(processes, phase.concurrency, len(phase.chains)), 1)
    parts = [phase.chains[index::count] for index in range(count)]
    callers = [(phase.concurrency + index) // count for index in reversed(range(count))]
    if count == 1:
        outcomes = _run(server, phase.chains, phase.concurrency)
    else:
        # Spawned, not forked: a fork of a process with threads may stand still.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, mp_context=spawn) as pool:
            outcomes = list(joined.from_iterable(pool.map(_run, repeat(server), parts, callers)))
    began = min(outcome.sent_at for outcome in outcomes)
    return outcomes, max(outcome.sent_at + outcome.e2e_s for outcome in outcomes) - began


def _run(server: LoadTarget, chains: Sequence[Chain], concurrency: int) -> list[RequestOutcome]:
    bodies = (
        (stream_body(server.model, output) | {"prompt": prompt} for prompt, output in prompts)
        for prompts in map(prompts_of, chains)
    )

    async def run() -> list[RequestOutcome]:
        async with load_session(server.timeout_s) as session:
            url = server.url + PATHS["completions"]
            sender = Sender(session, url, server.key, every_chunk=True)
            return await closed_loop(bodies, concurrency, sender.ask)

    return asyncio.run(run())


def load_session(timeout_s: float) -> aiohttp.ClientSession:
    """A session of as many connections as there are callers; `timeout_s`: of silence."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout_s),
        read_bufsize=1 << 20,
    )


def stream_body(model: str, output_tokens: int) -> Body:
    """A streamed request for exactly `output_tokens` tokens, with usage; the prompt is missing."""
    return {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


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
