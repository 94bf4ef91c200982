"""What chat and text completions have in common when an answer is rendered.

Knows: choices gathered from events, usage in OpenAI's shape. Does not know: the shapes of the two
(`chat.py`, `completions.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.messages import TokenLogprobs
from gateway.choice import Delta, EndReason, Event
from gateway.meter import Usage
from gateway.openai.replies import CachedByTier, PromptDetails, UsageReply
from gateway.openai.sse import SseFrame, sse


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One choice, complete."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    reason: EndReason


@dataclass(slots=True, kw_only=True)
class Reply(ABC):
    """Renders one request's answer. `id` and `created` are the same in all its chunks."""

    id: str
    created: int  # seconds since the epoch
    model: str
    include_usage: bool
    begun: set[int] = field(default_factory=set)  # choices of which a chunk was sent
    frames: dict[int, SseFrame] = field(default_factory=dict)  # by choice

    @property
    def no_usage_yet(self) -> msgspec.UnsetType | None:
        """`usage` in every chunk but the last: null if it will come, left out if not."""
        return None if self.include_usage else msgspec.UNSET

    def frame(self, event: Event) -> bytes | None:
        """The chunk for `event` as bytes; None when there is nothing to send."""
        if isinstance(event, Delta) and event.logprobs is None and event.index in self.begun:
            return self._frame_around(event) if event.text else None
        chunk = self.chunk(event)
        return None if chunk is None else sse(chunk)

    def _frame_around(self, delta: Delta) -> bytes:
        """A plain piece of text: the frames of one choice differ in nothing but their text."""
        around = self.frames.get(delta.index)
        if around is None:
            around = self.frames[delta.index] = SseFrame.around(self.text_chunk(delta.index))
        return around.with_text(delta.text)

    @abstractmethod
    def text_chunk(self, index: int) -> msgspec.Struct:
        """A chunk of a choice with an empty text, from which `_frame_around` makes the others."""

    @abstractmethod
    def chunk(self, event: Event) -> msgspec.Struct | None:
        """The chunk for `event`; None when there is nothing to send."""

    @abstractmethod
    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """The chunk after the last one, when usage was asked for."""

    @abstractmethod
    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> msgspec.Struct:
        """The whole answer."""


async def gather(events: AsyncIterable[Event]) -> list[FinishedChoice]:
    """All choices of an answer, in the order of their index."""
    gathering: dict[int, _Gathering] = {}
    finished = []
    async for event in events:
        choice = gathering.setdefault(event.index, _Gathering())
        if isinstance(event, Delta):
            choice.add(event)
        else:
            finished.append(choice.finished(event.index, event.reason))
    return sorted(finished, key=lambda choice: choice.index)


@dataclass(slots=True)
class _Gathering:
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None

    def add(self, delta: Delta) -> None:
        self.pieces.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs

    def finished(self, index: int, reason: EndReason) -> FinishedChoice:
        logprobs = None if self.logprobs is None else tuple(self.logprobs)
        return FinishedChoice(index, "".join(self.pieces), tuple(self.token_ids), logprobs, reason)


def usage_reply(usage: Usage) -> UsageReply:
    """Usage in OpenAI's shape."""
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(
            usage.cached_tokens,
            CachedByTier(usage.tiers.device, usage.tiers.host, usage.tiers.disk),
        ),
    )
