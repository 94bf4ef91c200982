"""One choice of an answer: from the engine's events to text that can be shown.

Knows: detokenising, stop strings, how a choice ends. Does not know: the other choices of the
request (`generation.py`) or wire formats (`openai/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

from msgspec import Struct

from engine.errors import EngineFailure, EngineUnavailable
from engine.messages import (
    Finished,
    Generate,
    Timing,
    TokenLogprobs,
    Tokens,
    WrittenAndRead,
)
from engine.stats_messages import TierTokens
from gateway.admission import TextRules
from gateway.detokenizer import Detokenizer, TokenDecoder
from gateway.stop_strings import StopScanner

EndReason = Literal["stop", "length"]

# How many events a choice yields before it gives the event loop a turn. Sending to a client that
# has gone returns at once, so a choice that has all its tokens already would never notice it.
_MAX_AT_ONCE = 16


# Structs, which take a tenth of a frozen dataclass's time to make: there is one for every token.
class Delta(Struct, frozen=True):
    """What a step's tokens add. The text may be shown now; some may be held back for later."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    queue_seconds: float | None
    cached_tokens: int | None = None  # with the first: of its prompt
    tiers: TierTokens | None = None  # likewise
    timing: Timing | None = None  # likewise
    saved_seconds: float | None = None  # likewise, where it is known


class Ended(Struct, frozen=True):
    """The last event of a choice."""

    index: int
    reason: EndReason
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens = TierTokens()  # of the cached tokens
    saved_seconds: float | None = None  # by them
    engine_seconds: float | None = None  # None: not known yet, the gateway ended the choice
    cache: WrittenAndRead | None = None  # likewise


Event = Delta | Ended


async def run_choice(
    events: AsyncGenerator[Tokens | Finished, None],
    choice: Choice,
    see: Callable[[Event], None],
) -> AsyncGenerator[Event, None]:
    """Any number of `Delta` and one `Ended`; an EngineError in place of the rest.

    `events` are the engine's; `see` is called with each of ours before it is yielded. When a stop
    string is met, the engine's stream is closed, which cancels the request there, before `Ended`
    is yielded.
    """
    ended: Ended | None = None
    told = 0
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished):
                delta, ended = choice.finish(event)
            else:
                delta, ended = choice.read(event)
            see(delta)
            yield delta
            if ended is not None:
                break
            told += 1
            if told % _MAX_AT_ONCE == 0:
                await asyncio.sleep(0)
    if ended is None:
        raise EngineFailure("the engine's stream broke off")
    see(ended)
    yield ended


class Choice:
    """The state of one choice between events."""

    def __init__(
        self, index: int, generate: Generate, rules: TextRules, decoder: TokenDecoder
    ) -> None:
        self._index = index
        self._shown_stop_ids = generate.sampling.stop_token_ids if rules.include_stop else ()
        self._text = Detokenizer(decoder, skip_special_tokens=rules.skip_special_tokens)
        self._stops = StopScanner(rules.stops, include_stop=rules.include_stop)
        self._has_stops = bool(rules.stops)
        self._min_tokens = generate.sampling.min_tokens
        self._tokens = 0
        self._cached = 0
        self._tiers = TierTokens()
        self._saved: float | None = None

    def read(self, event: Tokens) -> tuple[Delta, Ended | None]:
        """What `event` adds, and the end if it completes a stop string."""
        if event.cached_tokens is not None:
            self._cached = event.cached_tokens
            self._tiers = event.tiers or TierTokens(event.cached_tokens)
            self._saved = event.saved_seconds
        text, count = self._show(event.token_ids)
        logprobs = None if event.logprobs is None else event.logprobs[:count]
        delta = Delta(
            self._index,
            text,
            event.token_ids[:count],
            logprobs,
            event.queue_seconds,
            event.cached_tokens,
            None if event.cached_tokens is None else self._tiers,
            event.timing,
            event.saved_seconds,
        )
        if self._stops.stopped_by is None:
            return delta, None
        ended = Ended(self._index, "stop", self._cached, self._tokens, self._tiers, self._saved)
        return delta, ended

    def _show(self, token_ids: tuple[int, ...]) -> tuple[str, int]:
        """The text of `token_ids` up to a stop string, and how many of the ids that is."""
        if not self._has_stops:
            self._tokens += len(token_ids)
            return "".join([self._text.push(token_id) for token_id in token_ids]), len(token_ids)
        pieces = []
        for count, token_id in enumerate(token_ids, start=1):
            self._tokens += 1
            piece = self._text.push(token_id)
            if self._tokens <= self._min_tokens:  # too early to stop: no stop string begins here
                pieces.append(self._stops.flush() + piece)
                continue
            pieces.append(self._stops.feed(piece))
            if self._stops.stopped_by is not None:
                return "".join(pieces), count
        return "".join(pieces), len(token_ids)

    def finish(self, event: Finished) -> tuple[Delta, Ended]:
        """The text that was still held back, and the end as the engine reported it."""
        if event.reason == "cancelled":
            raise EngineUnavailable("the engine gave the request up")
        text = ""
        if event.stop_token_id is not None and event.stop_token_id in self._shown_stop_ids:
            text = self._text.push(event.stop_token_id)
        text = self._stops.feed(text + self._text.flush())
        stopped = self._stops.stopped_by is not None
        delta = Delta(self._index, text + self._stops.flush(), (), None, None)
        reason: EndReason = "stop" if stopped else event.reason
        return delta, Ended(
            self._index,
            reason,
            event.cached_tokens,
            event.completion_tokens,
            event.tiers,
            event.saved_seconds,
            event.engine_seconds,
            event.cache,
        )
