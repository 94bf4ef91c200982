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

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "cancelled"]
Priority = Literal["interactive", "batch"]  # batch waits for interactive, within bounds


Loads = Literal["auto", "always", "never"]
"""Whether prefixes that lie lower than the device are loaded: by measured curves, all, none."""


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
    cache_quota: tuple[float, float] | None = None  # the flow's floor and ceiling: shares of each
    # tier, 0 to 1; the weight divides what lies between. None: no floor, no ceiling


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client went away or a stop string was met. Answered by `Finished("cancelled")`."""

    request_id: str


class Flush(msgspec.Struct, frozen=True, kw_only=True, tag="flush"):
    """Forget cached prefixes: of one flow, of one namespace, or all when both are None.

    Of a flow for good: its records on disk lose their key, and requests of it that still run
    go on to their end but leave nothing behind.
    """

    query_id: str
    flow: str | None = None
    namespace: bytes | None = None


class StatsQuery(msgspec.Struct, frozen=True, tag="stats_query"):
    """Ask for the engine's counters."""

    query_id: str
    evictions: int = 0  # how many of the last between different flows are to be told


class Pin(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """Keep a prefix on the device for good; it is computed first where it is not there.

    Whoever says the same again, another gateway too, changes nothing and is answered as well.
    """

    query_id: str
    pin_id: str  # what it is known by; the same id is the same prefix
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


class TierTokens(msgspec.Struct, frozen=True, array_like=True):
    """Cached tokens of a prompt by the tier they came from; together they are `cached_tokens`."""

    device: int = 0
    host: int = 0
    disk: int = 0


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


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The sequence ended well."""

    request_id: str
    reason: FinishReason
    stop_token_id: int | None = None  # the token that stopped it, which Tokens does not repeat
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens = TierTokens()
    engine_seconds: float = 0.0  # its share, by tokens, of the steps that it took part in
    saved_seconds: float | None = None  # what computing the cached tokens would have taken, by
    # the rates of prefill measured so far; None: nothing has been measured


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The sequence ended badly; `code` is one of `engine.errors`."""

    request_id: str
    code: str
    message: str
    retry_after_s: float | None = None


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
    """The answer to one `Unpin`: so many blocks were let go; 0 where nothing was pinned."""

    query_id: str
    blocks: int


class FlowStats(msgspec.Struct, kw_only=True):
    """One flow's use of the cache since the engine started. Tokens and blocks."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    blocks_held: int = 0
    evictions_caused: int = 0
    evictions_suffered: int = 0
    written_blocks: int = 0
    unread_blocks: int = 0  # of those written: found by no request so far, here still or not


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens looked up, found and computed within a window of time."""

    queried_tokens: int
    hit_tokens: int
    computed_tokens: int


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """The device pool, in blocks; used = evictable + leased."""

    block_size: int
    total: int
    free: int
    used: int
    evictable: int
    leased: int


class WayStats(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from one tier to another since the start, in blocks."""

    source: str
    target: str
    blocks: int
    failed: int  # or lost
    seconds: float  # in which at least one was under way
    under_way: int


class LowerTierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the device, in blocks."""

    total: int
    used: int
    loads_chosen: int  # of the blocks that requests found there
    loads_refused: int  # computed instead


class DiskStats(msgspec.Struct, frozen=True, kw_only=True):
    """The disk tier's file and process."""

    state: str  # up, starting, down, off
    bytes: int
    records: int
    lost: int  # records that were not what was asked for
    refused: int  # writes that found no room
    late: int  # reads that missed their deadline
    quarantines: int
    failures: int  # deaths of its process


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """What has gone between the tiers. Counts since the engine started."""

    block_bytes: int = 0
    found: TierTokens = TierTokens()  # prompt tokens that requests found, by tier
    lower: dict[str, LowerTierStats] = {}  # "host", "disk"; those that are there
    ways: list[WayStats] = []
    evictions: dict[str, dict[str, int]] = {}  # blocks by tier and reason
    prefill: dict[int, float] = {}  # tokens a second, by the longest context measured with
    disk: DiskStats | None = None


BlocksByReason = dict[str, dict[str, int]]
"""Blocks by tier and reason."""


class ShareStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a flow stands in one tier, in blocks."""

    held: int
    floor: int  # what it is promised: less than its quota says where not all floors fit
    ceiling: int
    fair: float  # what it would have if everyone wanted more


class FlowShares(msgspec.Struct, frozen=True, kw_only=True):
    """How a flow stands in each tier, and what went for it and of it since the start."""

    tiers: dict[str, ShareStats] = {}
    caused: BlocksByReason = {}
    suffered: BlocksByReason = {}


class EvictionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one flow that went for another."""

    age_s: float  # how long ago
    of_flow: str
    for_flow: str
    tier: str
    reason: str
    blocks: int


class PinStats(msgspec.Struct, frozen=True, kw_only=True):
    """What is pinned, in blocks."""

    most: int = 0  # may be pinned in all
    claimed: int = 0  # are pinned, or will be when they have been computed
    pinned: dict[str, int] = {}  # by pin id; those that are on the device


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's counters at one moment."""

    engine_id: str
    fingerprint: bytes
    uptime_s: float
    running: int
    waiting: int
    preemptions: int
    steps: int
    generated_tokens: int
    windows: dict[str, WindowStats]  # "1m", "10m", "all"
    pool: PoolStats
    tree_nodes: int
    tree_depth: int
    flows: dict[str, FlowStats]
    loading: int = 0  # sequences whose prefix is on its way from a lower tier
    failed_loads: int = 0  # sequences that had to start over
    tiers: TierStats = TierStats()
    shares: dict[str, FlowShares] = {}  # by flow
    floors_scale: dict[str, float] = {}  # by tier: 1, or less where not all floors fit
    evictions: list[EvictionStats] = []  # as many as were asked for, the newest first
    pins: PinStats = PinStats()


class StatsReply(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The answer to one `StatsQuery`."""

    query_id: str
    stats: EngineStats


FromEngine = Welcome | StepReply | Flushed | Pinned | Unpinned | StatsReply
