"""The queries about the cache and the counters, and their replies."""

from __future__ import annotations

import msgspec

from engine.errors import EngineError, error_from_code
from engine.link.carrying_messages import Carried, Carrying
from engine.link.erasure import Erasure
from engine.link.query import Query, Reply
from engine.link.stats.engine_stats import EngineStats
from engine.link.stats.tier_stats import StateTier, TierTokens
from engine.link.view_messages import ViewQuery, ViewReply

UNRECORDED = ""  # id of a flush that no gateway records or repeats


class Flushed(Reply, frozen=True, kw_only=True, tag="flushed"):
    """The number of blocks that a flush dropped.

    Blocks that a sequence still leases are freed when the sequence ends.
    """

    blocks: int
    erasure: Erasure | None = None
    replicas: dict[str, Erasure] = msgspec.field(default_factory=dict)


class Flush(Query[Flushed], frozen=True, kw_only=True, tag="flush"):
    """A query to drop cached prefixes: of a flow, of namespaces, or all if both are None.

    `namespace` is a namespace, or the common first bytes of several. A flow's flush also makes its
    records on disk unreadable for ever. The flow's running requests are served to their end, but
    leave nothing in the cache. Compiled grammars are dropped too.
    """

    flow: str | None = None
    namespace: bytes | None = None
    flush_id: str = UNRECORDED


class Pinned(Reply, frozen=True, kw_only=True, tag="pinned"):
    """The reply to `Pin`: the prefix is pinned on the device, or `code` has the error."""

    blocks: int
    code: str | None = None  # code of an error of `engine.errors`
    message: str = ""
    retry_after_s: float | None = None

    def error(self) -> EngineError | None:
        """Return the error of a refused pin, or None if the prefix is pinned."""
        if self.code is None:
            return None
        return error_from_code(self.code, self.message, self.retry_after_s)


class Pin(Query[Pinned], frozen=True, kw_only=True, tag="pin"):
    """A query to keep a prefix on the device until it is unpinned. An uncached prefix is computed.

    A repeated query changes nothing, and is answered too.
    """

    pin_id: str
    token_ids: bytes  # int32, little endian; whole blocks
    namespace: bytes
    block_keys: bytes  # 16 bytes for every block


class Unpinned(Reply, frozen=True, kw_only=True, tag="unpinned"):
    """The reply to `Unpin`: the number of unpinned blocks, or 0 if the prefix was not pinned."""

    blocks: int


class Unpin(Query[Unpinned], frozen=True, kw_only=True, tag="unpin"):
    """A query to unpin a prefix, whose blocks may then be evicted like any other blocks."""

    pin_id: str


class Probed(Reply, frozen=True, kw_only=True, tag="probed"):
    """The reply to `Probe`: the cached tokens that a request with this prompt would find now."""

    tiers: TierTokens
    # Predicted seconds to compute these tokens; None: not measured.
    saved_seconds: float | None = None
    matched: int = 0
    state_tier: StateTier | None = None
    # code of an error of `engine.errors`, if the prompt cannot be looked up
    code: str | None = None
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused probe, or None if the prompt was looked up."""
        return None if self.code is None else error_from_code(self.code, self.message)


class Probe(Query[Probed], frozen=True, kw_only=True, tag="probe"):
    """A query for the cached tokens of a prompt. It does not count as a use of their blocks."""

    token_ids: bytes  # int32, little endian
    namespaces: tuple[tuple[int, bytes], ...]
    adapter_start: int = 0


class MarkedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prefix that its flow has marked to be retained."""

    prefix_id: bytes
    tokens: int
    tiers: TierTokens
    seconds: float  # seconds of retention after each use
    left: float  # seconds until the retention ends if the prefix is not used again


class MarkedPrefixes(Reply, frozen=True, kw_only=True, tag="marked"):
    """The reply to `ListMarked`. The prefix that was marked last comes first."""

    prefixes: list[MarkedPrefix]


class ListMarked(Query[MarkedPrefixes], frozen=True, kw_only=True, tag="list_marked"):
    """A query for the prefixes that a flow has marked."""

    flow: str


class MarkedForgotten(Reply, frozen=True, kw_only=True, tag="marked_forgotten"):
    """The reply to `ForgetMarked`: the number of forgotten blocks, or None without a mark."""

    blocks: int | None


class ForgetMarked(Query[MarkedForgotten], frozen=True, kw_only=True, tag="forget_marked"):
    """A query to forget a marked prefix of a flow.

    Blocks that no other prefix needs are removed from the cache. For some time no blocks are
    fetched for the flow, because another engine may still have the prefix.
    """

    flow: str
    prefix_id: bytes
    # False: the mark was on another engine; forget the prefix's blocks here too.
    is_marked: bool = True


class AdapterRead(Reply, frozen=True, kw_only=True, tag="adapter_read"):
    """The reply to `ReadAdapter`: the adapter can be served, or `code` has the error."""

    digest: bytes = b""  # 32-byte hash of the adapter's weights, rank and scale
    rank: int = 0
    num_bytes: int = 0  # size of the adapter in host memory, in bytes
    invocation: tuple[int, ...] = ()  # tokens that activate the adapter; empty: always active
    code: str | None = None  # code of an error of `engine.errors`
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused adapter, or None if it can be served."""
        return None if self.code is None else error_from_code(self.code, self.message)


class ReadAdapter(Query[AdapterRead], frozen=True, kw_only=True, tag="read_adapter"):
    """A query to read and check a LoRA adapter, which stays in host memory for later requests."""

    path: str  # the adapter's folder, relative to the engine's folder of adapters
    # Flow whose requests will use the adapter; empty if the gateway has an earlier release.
    flow: str = ""


class AdapterDropped(Reply, frozen=True, kw_only=True, tag="adapter_dropped"):
    """The reply to `DropAdapter`: the number of the adapter's blocks removed from the cache."""

    blocks: int


class DropAdapter(Query[AdapterDropped], frozen=True, kw_only=True, tag="drop_adapter"):
    """A query to forget an adapter of a flow, and the blocks that the flow has computed with it.

    If another flow also uses the adapter, it stays in host memory for that flow. Requests that
    still use the adapter are served to their end, but leave nothing in the cache.
    """

    digest: bytes
    flow: str
    namespaces: tuple[bytes, ...] = ()  # namespaces that may hold the adapter's older blocks


class StatsReply(Reply, frozen=True, kw_only=True, tag="stats"):
    """The reply to `StatsQuery`."""

    stats: EngineStats


class StatsQuery(Query[StatsReply], frozen=True, kw_only=True, tag="stats_query"):
    """A query for the engine's counters."""

    evictions: int = 0  # maximum number of evictions between flows in the reply, the last ones


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
