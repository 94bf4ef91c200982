"""One choice of an answer: the engine's events become text that can be shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Literal

from msgspec import Struct

from engine.errors import EngineFailure, EngineUnavailable
from engine.link.event_messages import Finished, Reused, Timing, TokenLogprobs, Tokens
from engine.link.interface import Restarted
from engine.link.messages import Generate
from gateway.generation.detokenizer import Detokenizer, TokenDecoder
from gateway.generation.packed_logprobs import PackedLogprobs, packed_bytes
from gateway.generation.stop_strings import StopScanner
from gateway.prompts.generation_request import TextRules
from gateway.turn_formats.pieces import Piece, ReasoningPiece
from gateway.turn_formats.turn_format import TurnParser

EndReason = Literal["stop", "length"]

# The number of events that a choice yields before it gives the event loop a turn. Sending to a
# disconnected client returns at once. Without turns, a choice whose tokens have all arrived would
# never notice the disconnection.
_MAX_AT_ONCE = 16


class ScoredPrompt(Struct, frozen=True):
    """A prompt's token ids, and on request the log-probabilities of all tokens but the first."""

    spelled: bytes  # int32 ids, shared by all choices of a prompt
    logprobs: Sequence[TokenLogprobs]

    @property
    def token_ids(self) -> Sequence[int]:
        """The prompt's token ids, not copied."""
        return memoryview(self.spelled).cast("i")

    @property
    def nbytes(self) -> int:
        """The bytes of the packed log-probabilities, without the shared token ids."""
        if isinstance(self.logprobs, PackedLogprobs):
            return self.logprobs.nbytes
        return sum(map(packed_bytes, self.logprobs))

    @property
    def work(self) -> int:
        """The work of encoding the prompt as JSON, in units of one tokenised character."""
        return len(self.token_ids) + self.nbytes

    def packed(self) -> ScoredPrompt:
        """Return a copy with packed log-probabilities, which take less memory."""
        return ScoredPrompt(self.spelled, PackedLogprobs(self.logprobs))


# The events are Structs, since every token makes an event, and a frozen dataclass takes ten times
# as long to make.
class Delta(Struct, frozen=True):
    """The tokens of an engine step, and the text that may be shown now. Other text is held back."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    reused: Reused | None = None
    timing: Timing | None = None
    # the parsed parts of the turn; None: the answer is plain text
    pieces: tuple[Piece, ...] | None = None
    # whether earlier deltas of the choice are to be discarded; never true in a stream
    is_restart: bool = False
    # the prompt, set in the first delta if the request asks for it
    prompt: ScoredPrompt | None = None


class ChoiceEnded(Struct, frozen=True):
    """The last event of a choice."""

    index: int
    reason: EndReason
    completion_tokens: int  # tokens of the choice up to its end; the engine may have computed more
    # the stop string, or the id of the stop token, that ended the choice
    stopped_by: str | int | None = None
    reasoning_tokens: int = 0
    is_all_shown: bool = True
    # `embedding` and `candidates` have the same meaning as in `Finished`
    embedding: bytes = b""
    candidates: bytes = b""
    # log-probabilities of the stop token, which is in no Delta
    stop_logprobs: TokenLogprobs | None = None


Event = Delta | ChoiceEnded


async def run_choice(
    events: AsyncGenerator[Tokens | Finished | Restarted, None],
    new: Callable[[], Choice],
    see: Callable[[Event], None],
    *,
    is_whole: bool = False,
) -> AsyncGenerator[Event, None]:
    """Yield a choice's `Delta`s and one `ChoiceEnded`; raise EngineError if the engine fails.

    `events` come from the engine. `see` is called with each event before the event is yielded. At a
    stop string, the engine's stream is closed before `ChoiceEnded` is yielded. Closing the stream
    cancels the request in the engine and makes the number of computed tokens known. The stream is
    also closed early if the turn is over before the stream ends.

    With `is_whole`, nothing is shown before the choice is complete. If the choice's engine dies or
    stops, another engine computes the choice anew. A `Delta` that reports the restart is yielded,
    and a `new` choice begins.
    """
    choice, told = new(), 0
    ended: ChoiceEnded | None = None
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Tokens):
                delta, ended = choice.read(event)
            elif isinstance(event, Finished):
                delta, ended = choice.finish(event)
            elif is_whole:
                choice, delta = new(), Delta(choice.index, "", (), None, is_restart=True)
            else:
                raise event.error
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
    """The decoding and parsing state of one choice between events."""

    def __init__(
        self,
        index: int,
        generate: Generate,
        rules: TextRules,
        decoder: TokenDecoder,
        parser: TurnParser | None = None,
    ) -> None:
        self.index = index
        self._shown_stop_ids = generate.sampling.stop_token_ids if rules.include_stop else ()
        self._text = Detokenizer(decoder, skip_special_tokens=rules.skip_special_tokens)
        self._stops = StopScanner(rules.stops, include_stop=rules.include_stop)
        self._has_stops = bool(rules.stops)
        self._hidden_stops = rules.hidden_stops
        self._min_tokens = generate.sampling.min_tokens
        self._tokens = 0
        self._parser = parser
        self._reasons = False
        self._reasoning_tokens = 0
        shows_prompt = rules.shows_prompt_ids or generate.sampling.prompt_logprobs is not None
        self._prompt = generate.token_ids if shows_prompt else None

    def read(self, event: Tokens) -> tuple[Delta, ChoiceEnded | None]:
        """Convert `event` to a delta, with an end after a stop string or at the turn's end."""
        text, count = self._show(event.token_ids)
        logprobs = None if event.logprobs is None else event.logprobs[:count]
        token_ids = event.token_ids[:count]
        stop = self._stops.stopped_by
        pieces = self._parsed(text, len(token_ids), is_last=stop is not None)
        delta = Delta(
            self.index,
            text,
            token_ids,
            logprobs,
            event.reused,
            event.timing,
            pieces,
            prompt=self._scored(event.prompt_logprobs),
        )
        if stop is None and not self._is_over:
            return delta, None
        return delta, ChoiceEnded(
            self.index, "stop", self._tokens, stop, self._reasoning_tokens, is_all_shown=False
        )

    def _scored(self, logprobs: tuple[TokenLogprobs, ...] | None) -> ScoredPrompt | None:
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return None
        return ScoredPrompt(prompt, logprobs or ())

    @property
    def _is_over(self) -> bool:
        return self._parser is not None and self._parser.is_over

    def _parsed(
        self, text: str, count: int, *, is_last: bool, is_cut: bool = False
    ) -> tuple[Piece, ...] | None:
        """Parse `text`, of `count` tokens.

        The tokens count as reasoning if the text ends within reasoning.
        """
        if self._parser is None:
            return None
        pieces = self._parser.feed(text)
        if is_last:
            pieces += self._parser.end(is_cut=is_cut)
        if pieces:
            self._reasons = isinstance(pieces[-1], ReasoningPiece)
        if self._reasons:
            self._reasoning_tokens += count
        return tuple(pieces)

    def _show(self, token_ids: tuple[int, ...]) -> tuple[str, int]:
        """Decode `token_ids` up to a stop string; return the text and the number of ids used."""
        if not self._has_stops:
            self._tokens += len(token_ids)
            return "".join([self._text.push(token_id) for token_id in token_ids]), len(token_ids)
        pieces = []
        for count, token_id in enumerate(token_ids, start=1):
            self._tokens += 1
            piece = self._text.push(token_id)
            # the choice must not stop yet, so no stop string may begin in this text
            if self._tokens <= self._min_tokens:
                pieces.append(self._stops.flush() + piece)
                continue
            pieces.append(self._stops.feed(piece + self._hidden_stops.get(token_id, "")))
            if self._stops.stopped_by is not None:
                return "".join(pieces), count
        return "".join(pieces), len(token_ids)

    def finish(self, event: Finished) -> tuple[Delta, ChoiceEnded]:
        """Return a delta of the text held back, and the end as the engine reported it."""
        if event.reason == "cancelled":
            raise EngineUnavailable("the engine gave the request up")
        text = ""
        if event.stop_token_id is not None and event.stop_token_id in self._shown_stop_ids:
            text = self._text.push(event.stop_token_id)
        text = self._stops.feed(text + self._text.flush())
        stop = self._stops.stopped_by
        text += self._stops.flush()
        reason: EndReason = event.reason if stop is None else "stop"
        pieces = self._parsed(text, 0, is_last=True, is_cut=reason == "length")
        prompt = self._scored(event.prompt_logprobs)
        delta = Delta(self.index, text, (), None, pieces=pieces, prompt=prompt)
        stopped_by = event.stop_token_id if stop is None else stop
        return delta, ChoiceEnded(
            self.index,
            reason,
            event.completion_tokens,
            stopped_by,
            self._reasoning_tokens,
            is_all_shown=stop is None and not self._is_over,
            embedding=event.embedding,
            candidates=event.candidates,
            stop_logprobs=event.stop_logprobs if stop is None else None,
        )
