"""The common part of the rendering of chat and text completions: streams and usage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from engine.link.event_messages import TokenLogprobs
from gateway.dialects.explaining import DraftUsage, RatoonReply, ratoon_reply
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai.answers.replies import CompletionDetails, PromptDetails, UsageReply
from gateway.dialects.openai_shape import CacheWrites, cached_by_tier, limit_headers
from gateway.generation.choice import ChoiceEnded, Event
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus


@dataclass(slots=True, kw_only=True)
class ReplyFormat(ABC):
    """A renderer of one request's answer. All its chunks have the same `id` and `created`."""

    last: ClassVar[bytes] = b"data: [DONE]\n\n"

    id: str
    created: int  # seconds since the epoch
    model: str
    fingerprint: str
    include_usage: bool
    provider: str | msgspec.UnsetType = UNSET
    tokenizer: Tokenizer
    ignored: tuple[PassedOver, ...] = ()
    shows_ids: bool = False
    begun: set[int] = field(default_factory=set)
    ratoon: RatoonReply | msgspec.UnsetType = UNSET

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        return limit_headers(standing)

    def begin(self, usage: Usage) -> None:
        """Write nothing. The first chunk says why the prompt missed the cache."""
        self.ratoon = ratoon_reply(usage, self.ignored)

    def usage_frame(self, usage: Usage) -> bytes | None:
        """Write the last chunk, with the usage; return None if the usage was not requested."""
        return sse(self.reply([], usage_reply(usage))) if self.include_usage else None

    def frame(self, event: Event) -> bytes | None:
        """Write the chunk for `event`, or return None if there is nothing to send.

        If the last chunk has the usage, `usage` is null in this chunk.
        """
        choice = self.piece(event)
        return None if choice is None else self._chunk(choice)

    def _chunk(self, choice: msgspec.Struct) -> bytes:
        return sse(self.chunk_of(choice))

    def chunk_of(self, choice: msgspec.Struct) -> msgspec.Struct:
        """Write the chunk with `choice`. The first chunk also has the fields that are sent once."""
        reply = self.reply([choice], None if self.include_usage else UNSET)
        if self.ratoon is not UNSET:
            reply = msgspec.structs.replace(reply, ratoon=self.ratoon)
            self.ratoon = UNSET
        return reply

    def token_ids(self, told: Event | FinishedChoice) -> list[int] | msgspec.UnsetType:
        """List the token ids of `told`, with its stop token; UNSET if the answer shows no ids."""
        if not self.shows_ids:
            return UNSET
        end = told.end if isinstance(told, FinishedChoice) else told
        last = end.stopped_by if isinstance(end, ChoiceEnded) else None
        ids = () if isinstance(told, ChoiceEnded) else told.token_ids
        return [*ids, *([last] if isinstance(last, int) else [])]

    def prompt_ids(self, told: Event | FinishedChoice) -> list[int] | msgspec.UnsetType:
        """List the prompt's token ids; UNSET if the answer shows no ids, or `told` has none."""
        prompt = None if isinstance(told, ChoiceEnded) else told.prompt
        return [*prompt.token_ids] if self.shows_ids and prompt is not None else UNSET

    @abstractmethod
    def piece(self, event: Event) -> msgspec.Struct | None:
        """Write the choice of a chunk for `event`, or return None if there is nothing to send."""

    @abstractmethod
    def reply(
        self, choices: Sequence[Any], usage: UsageReply | msgspec.UnsetType | None
    ) -> msgspec.Struct:
        """Write a chunk with the `choices`."""

    @abstractmethod
    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> msgspec.Struct:
        """Write the whole answer."""


def scored(
    told: Event | FinishedChoice, *, with_stop: bool
) -> tuple[Sequence[int], Sequence[TokenLogprobs] | None]:
    """Return the tokens of `told` with their log-probabilities, or None if none were requested.

    `with_stop` adds the token that stopped the choice.
    """
    ids, reported = ((), None) if isinstance(told, ChoiceEnded) else (told.token_ids, told.logprobs)
    end = told.end if isinstance(told, FinishedChoice) else told
    if with_stop and isinstance(end, ChoiceEnded) and end.stop_logprobs is not None:
        last, before = end.stopped_by, reported or ()
        if isinstance(last, int):
            return (*ids[: len(before)], last), (*before, end.stop_logprobs)
    return ids, reported


def sse(value: msgspec.Struct) -> bytes:
    """Write one server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def usage_reply(usage: Usage) -> UsageReply:
    """Write usage in OpenAI's shape."""
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_cache_hit_tokens=usage.cached_tokens,
        prompt_cache_miss_tokens=usage.prompt_tokens - usage.cached_tokens,
        prompt_tokens_details=PromptDetails(
            usage.cached_tokens, sum(usage.written), CacheWrites.of(usage), cached_by_tier(usage)
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=usage.reasoning_tokens,
            accepted_prediction_tokens=usage.accepted_prediction_tokens,
            rejected_prediction_tokens=usage.rejected_prediction_tokens,
            ratoon=DraftUsage.of(usage),
        ),
    )
