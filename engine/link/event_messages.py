"""The events of requests, which an engine sends to the gateways that asked.

Every `Generate` is answered by any number of `Tokens` and exactly one `Finished` or `Failed`.

Elsewhere: requests, and all other messages on the link (`messages.py`).
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from engine.link.stats_messages import StateTier, TierTokens

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The natural-log probabilities at one position, before temperature and penalties.

    The most likely tokens are packed, because the engine's thread copies the device's bytes.
    """

    chosen: float
    top_ids: bytes = b""  # int32, little endian, most likely first
    top_values: bytes = b""  # float32, little endian, one for each id
    rank: int | None = None  # rank of a prompt's token: 1 is the most likely

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The pairs (token id, logprob), most likely first, unpacked at each call."""
        count = len(self.top_ids) // 4
        ids = struct.unpack(f"<{count}i", self.top_ids)
        return tuple(zip(ids, struct.unpack(f"<{count}f", self.top_values), strict=True))


# The drafted and accepted tokens of a request by source.
DraftCounts = dict[str, tuple[int, int]]

# For each token of a prompt except the first.
PromptLogprobs = tuple[TokenLogprobs, ...] | None


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a sequence's time before its first token, in seconds, one after the other."""

    queue: float  # waiting for the sequence's turn
    match: float  # matching the prefix with the cache, and leasing blocks
    load: float  # waiting for blocks from slower tiers
    prefill: float  # seconds from the load's end until the first token's step was settled
    fetch: float = 0.0  # waiting for another engine's blocks, after the load

    # The time of the first token by the engine's clock, for differences only. A gateway may read
    # the event late. None: unknown.
    at: float | None = None


class Reused(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a prompt that came from the cache, and tokens that its marks retain."""

    tiers: TierTokens = TierTokens()
    # The predicted seconds to compute these tokens, or None without a prediction.
    saved_seconds: float | None = None
    # For each mark, how many tokens the request put in the cache between the previous mark and this
    # mark.
    written: tuple[int, ...] = ()
    fetched: int = 0  # tokens that another engine sent, not included in `tiers`

    # The tokens with cached blocks, if more than were reused, else 0. No recurrent state is kept at
    # their end.
    matched: int = 0
    # The lower tier from which the recurrent state was loaded, if no tokens were loaded from there.
    state_tier: StateTier | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens that were not computed."""
        return self.tiers.total + self.fetched

    @property
    def by_tier(self) -> TierTokens:
        """All tokens that were not computed. Fetched tokens count for the device."""
        return self.tiers + TierTokens(self.fetched)


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """The tokens that a step appended to a sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reused: Reused | None = None  # set on the first Tokens of a request
    timing: Timing | None = None
    prompt_logprobs: PromptLogprobs = None  # set on the first Tokens, if requested


class WrittenAndRead(msgspec.Struct, frozen=True, array_like=True):
    """The labelled tokens that a request wrote to the cache, and those that it was the first to
    read.

    Only tokens written under a label (`Generate.writer`) are counted, in whole blocks.
    """

    written: int = 0  # new tokens put into the cache under the request's own label
    first_reads: dict[str, int] = {}  # tokens first found by this request, by their label


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The end of a sequence, or its cancellation."""

    request_id: str
    reason: FinishReason
    stop_token_id: int | None = None  # the token that ended the answer; it is not in `Tokens`
    stop_logprobs: TokenLogprobs | None = None  # logprobs of `stop_token_id`, if requested
    prompt_tokens: int
    reused: Reused = Reused()
    computed_tokens: int = 0  # computed tokens of the prompt; recomputed tokens count once
    completion_tokens: int  # all sampled tokens, sent or not
    engine_seconds: float = 0.0  # the sequence's share, by tokens, of its steps' seconds
    cache: WrittenAndRead = WrittenAndRead()
    prompt_logprobs: PromptLogprobs = None  # set if no Tokens came before
    drafts: DraftCounts = {}
    # The last prompt token's hidden state after the final norm, if requested (float32, little
    # endian).
    embedding: bytes = b""
    candidates: bytes = b""  # float32, little endian: the candidates' logits after the prompt


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The failure of a sequence. `code` is one of `engine.errors`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None
    reused: Reused | None = None  # None if not begun; this and later fields are as in `Finished`
    computed_tokens: int = 0
    completion_tokens: int = 0
    cache: WrittenAndRead = WrittenAndRead()
    drafts: DraftCounts = {}


Event = Tokens | Finished | Failed


class StepReply(msgspec.Struct, frozen=True, tag="step"):
    """All events of one step for one gateway."""

    events: list[Event]
