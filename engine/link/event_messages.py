"""The events of requests, which an engine sends to the gateways that sent the requests.

The answer to every `Generate` is any number of `Tokens`, then exactly one `Finished` or `Failed`.

Elsewhere: requests, and all other messages on the link (`messages.py`).
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from engine.link.stats.tier_stats import StateTier, TierTokens

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log probabilities (natural logarithm) at one position, before temperature and penalties.

    The most likely tokens are stored as bytes, so that the engine can copy them from the device
    without converting them.
    """

    chosen: float
    top_ids: bytes = b""  # int32, little endian, most likely first
    top_values: bytes = b""  # float32, little endian, one for each id
    rank: int | None = None  # rank of a prompt token among all tokens; 1 is the most likely

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The pairs (token id, logprob), most likely first, unpacked at each call."""
        count = len(self.top_ids) // 4
        ids = struct.unpack(f"<{count}i", self.top_ids)
        return tuple(zip(ids, struct.unpack(f"<{count}f", self.top_values), strict=True))


# Source of drafts -> numbers of (drafted, accepted) tokens of a request.
DraftCounts = dict[str, tuple[int, int]]

# The logprobs of each token of a prompt except the first.
PromptLogprobs = tuple[TokenLogprobs, ...] | None


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """The phases of a sequence before its first token, in seconds, in order of time."""

    queue: float  # waiting in the queue
    match: float  # matching the prefix with the cache, and leasing blocks
    load: float  # waiting for blocks from slower tiers
    prefill: float  # from the load's end until the step with the first token was settled
    fetch: float = 0.0  # waiting for another engine's blocks, after the load

    # The time of the first token by the engine's clock. Only differences of such times are
    # meaningful. A gateway may receive the event much later. None: unknown.
    at: float | None = None


class Reused(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a prompt that were read from the cache, and tokens that its marks retain."""

    tiers: TierTokens = TierTokens()
    # The predicted seconds to compute these tokens, or None without a prediction.
    saved_seconds: float | None = None
    # For each mark, the number of tokens that the request added to the cache between the previous
    # mark and this mark.
    written: tuple[int, ...] = ()
    fetched: int = 0  # tokens received from another engine; `tiers` does not include them

    # The number of tokens with cached blocks if this is more than were reused, else 0. The others
    # were not reused, because no recurrent state is cached at their end.
    matched: int = 0
    # The lower tier from which only the recurrent state was loaded, and no tokens.
    state_tier: StateTier | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens that were not computed."""
        return self.tiers.total + self.fetched

    @property
    def by_tier(self) -> TierTokens:
        """The tokens that were not computed, by tier. Fetched tokens count as device tokens."""
        return self.tiers + TierTokens(self.fetched)


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """The tokens that a step appended to a sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reused: Reused | None = None  # set in the first Tokens of a request
    timing: Timing | None = None
    prompt_logprobs: PromptLogprobs = None  # set in the first Tokens, if requested


class WrittenAndRead(msgspec.Struct, frozen=True, array_like=True):
    """The labelled tokens that a request wrote to the cache, and those it was the first to read.

    Only tokens written under a label (`Generate.writer`) are counted, in whole blocks.
    """

    written: int = 0  # new tokens written to the cache under the request's own label
    # Label -> tokens with this label that no earlier request had read.
    first_reads: dict[str, int] = {}


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The end of a sequence, or its cancellation."""

    request_id: str
    reason: FinishReason
    stop_token_id: int | None = None  # the token that ended the answer; not sent in `Tokens`
    stop_logprobs: TokenLogprobs | None = None  # logprobs of `stop_token_id`, if requested
    prompt_tokens: int
    reused: Reused = Reused()
    computed_tokens: int = 0  # computed tokens of the prompt; a recomputed token counts once
    completion_tokens: int  # all sampled tokens, including those not sent in `Tokens`
    # Seconds of the sequence's steps, divided among sequences by tokens.
    engine_seconds: float = 0.0
    cache: WrittenAndRead = WrittenAndRead()
    prompt_logprobs: PromptLogprobs = None  # set here if no Tokens were sent before
    drafts: DraftCounts = {}
    # The hidden state of the prompt's last token after the final norm, if requested. Float32,
    # little endian.
    embedding: bytes = b""
    candidates: bytes = b""  # the candidates' logits after the prompt, float32, little endian


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The failure of a sequence. `code` is one of `engine.errors`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None
    # None if the sequence had not started; the next fields are as in `Finished`.
    reused: Reused | None = None
    computed_tokens: int = 0
    completion_tokens: int = 0
    cache: WrittenAndRead = WrittenAndRead()
    drafts: DraftCounts = {}


Event = Tokens | Finished | Failed


class StepReply(msgspec.Struct, frozen=True, tag="step"):
    """All events of one step for one gateway."""

    events: list[Event]
