"""The sender of a request, which reads the answer's stream and records the chunks' times.

Only chunks with generated content count: text, reasoning or a part of a call. TTFT is the time to
the first such chunk. ITL is each gap between two such chunks. TPOT is the time from the first to
the last, divided by the output tokens after the first. E2E is the time to the end of the stream.
TTFT and E2E begin at the request's arrival, which is `waited_s` before it was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec

from cli.json_text import NotJson, decode_json

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

Body = dict[str, Any]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The server to load, the model's name, and the seconds without data that fail a request."""

    url: str
    key: str
    model: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request, in seconds and tokens. `error` is a short code, or None."""

    e2e_s: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    # None if the server did not report cached tokens
    cached_tokens: int | None = None
    output_tokens: int = 0
    error: str | None = None
    sent_at: float = 0.0
    waited_s: float = 0.0  # seconds from arrival to sending; part of `ttft_s` and `e2e_s`
    output_characters: int = 0

    @property
    def arrived_at(self) -> float:
        """The arrival time, in seconds of the sender's clock."""
        return self.sent_at - self.waited_s

    @property
    def tpot_s(self) -> float | None:
        """The seconds per output token after the first, if there is a second token.

        The time ends with the last chunk that has content, as in AIPerf and vLLM's `bench serve`.
        The usage and the end of the stream come later.
        """
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)

    def arrived(self, at: float) -> RequestOutcome:
        """Return the outcome with times measured from the request's arrival at `at`."""
        waited = self.sent_at - at
        ttft_s = None if self.ttft_s is None else self.ttft_s + waited
        return replace(self, waited_s=waited, ttft_s=ttft_s, e2e_s=self.e2e_s + waited)


@dataclass(slots=True)
class Transcript:
    """The received part of an event stream, and the arrival times of its chunks.

    A token may end within a character, and so make a chunk without text. Such a chunk counts only
    with `every_chunk`. A chunk that only gives the finish reason never counts.
    """

    sent_at: float
    every_chunk: bool = False
    stamps: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    characters: int = 0
    error: str | None = None
    ended: bool = False

    def hear(self, line: bytes, at: float) -> None:
        """Read a line of the stream, received at time `at`, and ignore all but `data:` lines."""
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
        characters = sum(len(_generated(choice)) for choice in choices)
        self.characters += characters
        if characters or (self.every_chunk and not all(map(_only_ends, choices))):
            self.stamps.append(at)

    def outcome(self, at: float) -> RequestOutcome:
        """Return the outcome of the request, whose stream ended at `at`."""
        return RequestOutcome(
            e2e_s=at - self.sent_at,
            ttft_s=self.stamps[0] - self.sent_at if self.stamps else None,
            gaps_s=tuple(b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)),
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            cached_tokens=(self.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            output_tokens=self.usage.get("completion_tokens", len(self.stamps)),
            error=self.error or (None if self.ended else "stream cut off"),
            sent_at=self.sent_at,
            output_characters=self.characters,
        )


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender of requests over one session. `clock` gives seconds."""

    session: aiohttp.ClientSession
    url: str
    key: str
    clock: Clock = time.perf_counter
    every_chunk: bool = False

    async def ask(self, body: Body) -> RequestOutcome:
        """Send a body and read the answer's stream to its end. Server errors become outcomes."""
        content = msgspec.json.encode(body)  # encoded before the time is taken
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


def load_session(timeout_s: float) -> aiohttp.ClientSession:
    """Open a session with unlimited connections. `timeout_s` limits the time without data."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=timeout_s),
        read_bufsize=1 << 20,
    )


def stream_body(model: str, output_tokens: int) -> Body:
    """Return a streamed request for exactly `output_tokens` tokens, still without its prompt."""
    return {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def refusal_code(status: int, content: bytes) -> str:
    """Name a refusal by its status, and by its error code if there is one."""
    try:
        answer = decode_json(content, Any)
    except NotJson:
        answer = None
    code = _code(answer.get("error")) if isinstance(answer, dict) else None
    return f"{status} {code}" if code else str(status)


def _code(error: Any) -> str | None:
    return error.get("code") if isinstance(error, dict) else None


def _only_ends(choice: dict[str, Any]) -> bool:
    return choice.get("finish_reason") is not None and not _generated(choice)


def _generated(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    # some servers use the one name, some the other
    reasoning = delta.get("reasoning") or delta.get("reasoning_content")
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
    parts = [choice.get("text"), delta.get("content"), delta.get("refusal"), reasoning]
    parts += [call.get(name) for call in calls for name in ("name", "arguments")]
    return "".join(part for part in parts if part)
