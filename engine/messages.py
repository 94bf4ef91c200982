"""What crosses the link between gateway and engine.

Forward go `Hello`, `Generate`, `Cancel`, `Flush`, `Pin`, `Unpin`, `StatsQuery`; back come one
`Welcome` per `Hello`, one `StepReply` per step and gateway, one `Flushed` per `Flush`, one
`Pinned` per `Pin`, one `Unpinned` per `Unpin`, one `StatsReply` per `StatsQuery`. Every
`Generate` is answered by any number of `Tokens` and exactly one `Finished` or `Failed`, also when
it was cancelled.

Knows: field names, types, units. Does not know: sockets (`link.py`, `client.py`) or how the
bytes are bounded (`codec.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from engine.stats_messages import EngineStats, TierTokens

if TYPE_CHECKING:
    import numpy.typing as npt

FinishReason = Literal["stop", "length", "cancelled"]
Priority = Literal["interactive", "batch"]  # batch waits for interactive, within bounds


Loads = Literal["auto", "always", "never"]
"""Whether prefixes that lie lower than the device are loaded: by measured curves, all, none."""


def pack_token_ids(token_ids: npt.ArrayLike) -> bytes:
    """Token ids as they travel: int32, little endian."""
    # Imported here: commands need the names in this file, but send no tokens, and numpy takes 0.1 s
    # to load.
    import numpy as np

    return np.asarray(token_ids, dtype="<i4").tobytes()


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. Validated at admission; nothing behind it re-checks."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    num_logprobs: int | None = None  # None: no logprobs; 0: the chosen token's alone
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a gateway on every (re)connection."""


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """One sequence to continue. `n` choices are `n` of these; single flight shares the prompt."""

    request_id: str
    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]  # spans of a NamespacePath
    block_keys: bytes  # 16 bytes for every whole block of the prompt
    flow: str  # whose turn it is; opaque to the engine
    weight: float = 1.0
    priority: Priority = "interactive"
    sampling: SamplingParams
    use_cache: bool = True  # False: neither read from the cache nor write to it
    loads: Loads = "auto"
    # The flow's floor and ceiling as shares of each tier, 0 to 1; flows divide what lies between
    # by weight. None: no floor, no ceiling.
    cache_quota: tuple[float, float] | None = None
    # A label for what it writes into the cache where its namespaces end, told to whoever is the
    # first to find that (`WrittenAndRead`). Opaque to the engine; "": none.
    writer: str = ""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client left, or a stop string was met. Answered by `Finished("cancelled")`."""

    request_id: str


class Flush(msgspec.Struct, frozen=True, kw_only=True, tag="flush"):
    """Forget cached prefixes: of one flow, of one namespace, or all when both are None.

    A flow is forgotten for good: its records on disk become unreadable, and its requests that
    still run are served to their end but leave nothing in the cache.
    """

    query_id: str
    flow: str | None = None
    namespace: bytes | None = None


class StatsQuery(msgspec.Struct, frozen=True, tag="stats_query"):
    """Ask for the engine's counters."""

    query_id: str
    evictions: int = 0  # how many of the last ones between different flows the reply lists


class Pin(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """Keep a prefix on the device for good; it is computed first if it is not cached.

    Idempotent: the same pin again, also from another gateway, changes nothing and is answered.
    """

    query_id: str
    pin_id: str  # its name; the same id is the same prefix
    token_ids: bytes  # int32, little endian; whole blocks
    namespace: bytes
    block_keys: bytes  # 16 bytes for every block


class Unpin(msgspec.Struct, frozen=True, kw_only=True, tag="unpin"):
    """Let a pinned prefix go: from now on its blocks may be evicted like any others."""

    query_id: str
    pin_id: str


ToEngine = Hello | Generate | Cancel | Flush | Pin | Unpin | StatsQuery


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """What the engine is. `engine_id` is new for every start of the process."""

    engine_id: str
    fingerprint: bytes
    vocab_size: int
    block_size: int
    max_model_len: int  # tokens: the model's context or the pool, whichever is smaller
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one position, before temperature and penalties."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Where a sequence's time went before its first token. Seconds, one after the other."""

    queue: float  # waiting for its turn
    match: float  # finding its prefix in the cache and leasing blocks
    load: float  # waiting for blocks from slower tiers; 0 where there are none
    prefill: float  # from then on until the step that sampled its first token was settled


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Tokens a step appended to a sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    cached_tokens: int | None = None  # set on the first Tokens of a request
    tiers: TierTokens | None = None  # likewise
    queue_seconds: float | None = None  # likewise
    timing: Timing | None = None  # likewise
    saved_seconds: float | None = None  # likewise, as in Finished


class WrittenAndRead(msgspec.Struct, frozen=True, array_like=True):
    """What a request changed in what of the cache is written and never read, in tokens.

    Only what was written under a label (`Generate.writer`) is counted, in whole blocks.
    """

    written: int = 0  # put into the cache under its own label, where nobody had put it
    first_reads: dict[str, int] = {}  # found there before any other request, by their labels


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The sequence came to its end, or was cancelled."""

    request_id: str
    reason: FinishReason
    stop_token_id: int | None = None  # the token that stopped it, which Tokens does not repeat
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens = TierTokens()
    engine_seconds: float = 0.0  # its share, by tokens, of the steps that it took part in
    # What computing the cached tokens would have taken, by the prefill rates measured so far.
    # None: nothing has been measured.
    saved_seconds: float | None = None
    cache: WrittenAndRead = WrittenAndRead()


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The sequence could not be served; `code` is one of `engine.errors`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None
    cache: WrittenAndRead = WrittenAndRead()


Event = Tokens | Finished | Failed


class StepReply(msgspec.Struct, frozen=True, tag="step"):
    """All events of one step for one gateway."""

    events: list[Event]


class Flushed(msgspec.Struct, frozen=True, kw_only=True, tag="flushed"):
    """How many blocks a flush forgot; leased ones are freed when their sequence ends."""

    query_id: str
    blocks: int


class Pinned(msgspec.Struct, frozen=True, kw_only=True, tag="pinned"):
    """The answer to one `Pin`: the prefix is on the device and stays, or `code` says why not."""

    query_id: str
    blocks: int
    code: str | None = None  # one of `engine.errors`
    message: str = ""
    retry_after_s: float | None = None


class Unpinned(msgspec.Struct, frozen=True, kw_only=True, tag="unpinned"):
    """The answer to one `Unpin`: how many blocks were let go; 0 where nothing was pinned."""

    query_id: str
    blocks: int


class StatsReply(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The answer to one `StatsQuery`."""

    query_id: str
    stats: EngineStats


FromEngine = Welcome | StepReply | Flushed | Pinned | Unpinned | StatsReply
