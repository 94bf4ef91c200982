"""What a gateway asks of the engine itself, and the reply to each: one per query, with its id."""

from __future__ import annotations

import msgspec

from engine.link.stats_messages import EngineStats


class Flush(msgspec.Struct, frozen=True, kw_only=True, tag="flush"):
    """Forget cached prefixes: of one flow, of one namespace, or all when both are None.

    A flow is forgotten for good: its records on disk become unreadable, and its requests that
    still run are served to their end but leave nothing in the cache. Compiled grammars of the
    flow, or all of them, are forgotten, too.
    """

    query_id: str
    flow: str | None = None
    namespace: bytes | None = None


class Flushed(msgspec.Struct, frozen=True, kw_only=True, tag="flushed"):
    """How many blocks a flush forgot; leased ones are freed when their sequence ends."""

    query_id: str
    blocks: int


class Pin(msgspec.Struct, frozen=True, kw_only=True, tag="pin"):
    """Keep a prefix on the device for good; it is computed first if it is not cached.

    Idempotent: the same pin again, also from another gateway, changes nothing and is answered.
    """

    query_id: str
    pin_id: str  # its name; the same id is the same prefix
    token_ids: bytes  # int32, little endian; whole blocks
    namespace: bytes
    block_keys: bytes  # 16 bytes for every block


class Pinned(msgspec.Struct, frozen=True, kw_only=True, tag="pinned"):
    """The answer to one `Pin`: the prefix is on the device and stays, or `code` says why not."""

    query_id: str
    blocks: int
    code: str | None = None  # one of `engine.errors`
    message: str = ""
    retry_after_s: float | None = None


class Unpin(msgspec.Struct, frozen=True, kw_only=True, tag="unpin"):
    """Let a pinned prefix go: from now on its blocks may be evicted like any others."""

    query_id: str
    pin_id: str


class Unpinned(msgspec.Struct, frozen=True, kw_only=True, tag="unpinned"):
    """The answer to one `Unpin`: how many blocks were unpinned; 0 where nothing was pinned."""

    query_id: str
    blocks: int


class StatsQuery(msgspec.Struct, frozen=True, tag="stats_query"):
    """Ask for the engine's counters."""

    query_id: str
    evictions: int = 0  # how many of the last ones between different flows the reply lists


class StatsReply(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The answer to one `StatsQuery`."""

    query_id: str
    stats: EngineStats


Query = Flush | Pin | Unpin | StatsQuery
Reply = Flushed | Pinned | Unpinned | StatsReply
