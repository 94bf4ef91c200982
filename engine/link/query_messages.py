"""The queries about the cache and the counters, and their replies."""

from __future__ import annotations

import msgspec

from engine.errors import EngineError, error_from_code
from engine.link.carrying_messages import Carried, Carrying
from engine.link.erasure import Erasure
from engine.link.query import Query, Reply
from engine.link.stats_messages import EngineStats, StateTier, TierTokens
from engine.link.view_messages import ViewQuery, ViewReply

UNRECORDED = ""  # id of a flush that is never repeated


class Flushed(Reply, frozen=True, kw_only=True, tag="flushed"):
    """The number of blocks that a flush dropped.

    Leased blocks are freed when their sequence ends.
    """

    blocks: int
    erasure: Erasure | None = None
    replicas: dict[str, Erasure] = msgspec.field(default_factory=dict)


class Flush(Query[Flushed], frozen=True, kw_only=True, tag="flush"):
    """A query to drop cached prefixes: of one flow, of namespaces, or all when both are None.

    `namespace` is a namespace, or the first bytes of several. The flush of a flow is permanent. The
    flow's records on disk become unreadable. The flow's running requests are served to their end
    but leave nothing in the cache. Compiled grammars are dropped too.
    """

    flow: str | None = None
    namespace: bytes | None = None
    flush_id: str = UNRECORDED


class Pinned(Reply, frozen=True, kw_only=True, tag="pinned"):
    """The reply to `Pin`: the prefix is on the device and stays, or `code` has the error."""

    blocks: int
    code: str | None = None  # code of an error in `engine.errors`
    message: str = ""
    retry_after_s: float | None = None

    def error(self) -> EngineError | None:
        """Return the error of a refused pin, or None if the prefix is pinned."""
        if self.code is None:
            return None
        return error_from_code(self.code, self.message, self.retry_after_s)


class Pin(Query[Pinned], frozen=True, kw_only=True, tag="pin"):
    """A query to keep a prefix on the device for good, computing it first if it is not cached.

    Idempotent: a repeated pin changes nothing and is answered.
    """

    pin_id: str
    token_ids: bytes  # int32, little endian; whole blocks
    namespace: bytes
    block_keys: bytes  # 16 bytes for every block


class Unpinned(Reply, frozen=True, kw_only=True, tag="unpinned"):
    """The reply to `Unpin`: the number of unpinned blocks, or 0 if there was no such pin."""

    blocks: int


class Unpin(Query[Unpinned], frozen=True, kw_only=True, tag="unpin"):
    """A query to unpin a prefix, whose blocks may then be evicted like any other blocks."""

    pin_id: str


class Probed(Reply, frozen=True, kw_only=True, tag="probed"):
    """The reply to `Probe`: the cached tokens that a request with this prompt would find now."""

    tiers: TierTokens
    saved_seconds: float | None = None  # predicted seconds of computing; None: not measured
    matched: int = 0
    state_tier: StateTier | None = None
    # code of an error in `engine.errors`, if the prompt cannot be looked up
    code: str | None = None
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused probe, or None if the prompt was looked up."""
        return None if self.code is None else error_from_code(self.code, self.message)


class Probe(Query[Probed], frozen=True, kw_only=True, tag="probe"):
    """A query for the cached tokens of a prompt. Nothing changes, and no block counts as used."""

    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]
    adapter_start: int = 0


class MarkedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prefix that is retained for its flow."""

    prefix_id: bytes
    tokens: int
    tiers: TierTokens
    seconds: float  # seconds of retention after each use
    left: float  # seconds until the retention ends without further use


class MarkedPrefixes(Reply, frozen=True, kw_only=True, tag="marked"):
    """The reply to `ListMarked`, the last marked prefix first."""

    prefixes: list[MarkedPrefix]


class ListMarked(Query[MarkedPrefixes], frozen=True, kw_only=True, tag="list_marked"):
    """A query for the prefixes that a flow has marked."""

    flow: str


class MarkedForgotten(Reply, frozen=True, kw_only=True, tag="marked_forgotten"):
    """The reply to `ForgetMarked`: the number of blocks, or None if the prefix had no mark."""

    blocks: int | None


class ForgetMarked(Query[MarkedForgotten], frozen=True, kw_only=True, tag="forget_marked"):
    """A query to forget a marked prefix of a flow.

    Blocks that no other prefix needs leave the cache. For a while no blocks are fetched for the
    flow, since another engine may still have the prefix.
    """

    flow: str
    prefix_id: bytes
    is_marked: bool = True  # False: another engine had marked it; its blocks here are forgotten too


class AdapterRead(Reply, frozen=True, kw_only=True, tag="adapter_read"):
    """The reply to `ReadAdapter`: the adapter can be served, or `code` has the error."""

    digest: bytes = b""  # 32 bytes, of the adapter's weights, rank and scale
    rank: int = 0
    num_bytes: int = 0  # bytes of the adapter in host memory
    invocation: tuple[int, ...] = ()  # tokens that switch the adapter on; empty: always on
    code: str | None = None  # code of an error in `engine.errors`
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused adapter, or None if it can be served."""
        return None if self.code is None else error_from_code(self.code, self.message)


class ReadAdapter(Query[AdapterRead], frozen=True, kw_only=True, tag="read_adapter"):
    """A query to read and check a LoRA adapter, which stays in host memory for later requests."""

    path: str  # the adapter's folder, below the engine's folder of adapters
    flow: str = ""  # whose requests will use the adapter; empty: an earlier release's gateway asks


class AdapterDropped(Reply, frozen=True, kw_only=True, tag="adapter_dropped"):
    """The reply to `DropAdapter`: the number of the adapter's blocks that left the cache."""

    blocks: int


class DropAdapter(Query[AdapterDropped], frozen=True, kw_only=True, tag="drop_adapter"):
    """A query to forget an adapter of a flow, and the blocks that the flow has computed with it.

    An adapter that another flow has is not read again for that flow.
    Requests that still use the adapter are served to their end, but leave nothing in the cache.
    """

    digest: bytes
    flow: str
    namespaces: tuple[bytes, ...] = ()  # namespaces that may hold the adapter's older blocks


class StatsReply(Reply, frozen=True, kw_only=True, tag="stats"):
    """The reply to `StatsQuery`."""

    stats: EngineStats


class StatsQuery(Query[StatsReply], frozen=True, kw_only=True, tag="stats_query"):
    """A query for the engine's counters."""

    evictions: int = 0  # how many of the last evictions between flows the reply lists


QueryMessage = (
    Flush
    | Pin
    | Unpin
    | Probe
    | ListMarked
    | ForgetMarked
    | ReadAdapter
    | DropAdapter
    | StatsQuery
    | ViewQuery
    | Carrying
)
ReplyMessage = (
    Flushed
    | Pinned
    | Unpinned
    | Probed
    | MarkedPrefixes
    | MarkedForgotten
    | AdapterRead
    | AdapterDropped
    | StatsReply
    | ViewReply
    | Carried
)
