"""The queries that carry a pinned prefix's KV out of an engine, and into another, in units.

    units of a prefix    its blocks, in order | its recurrent state, cut to the size of blocks

A unit has as many bytes as a block. A client repeats `BeginImport` until the import `is_ready`,
writes the units in any order, and ends the import. The blocks are then in the cache, and are held
there for a while until they are pinned.
"""

from __future__ import annotations

from engine.errors import EngineError, error_from_code
from engine.link.query import Query, Reply


class CarriedReply(Reply, frozen=True, kw_only=True):
    """The base of the replies. A refusal has a `code`, which is one of `engine.errors`."""

    code: str | None = None
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused query, or None for a successful query."""
        return None if self.code is None else error_from_code(self.code, self.message)


class PrefixUnits(CarriedReply, frozen=True, kw_only=True, tag="prefix_units"):
    """The reply to `ReadPrefix`: the prefix's shape, and the bytes of the requested units."""

    unit_bytes: int = 0
    blocks: int = 0
    state_units: int = 0  # number of units of the recurrent state; 0: no layer is recurrent
    payload: bytes = b""


class ReadPrefix(Query[PrefixUnits], frozen=True, kw_only=True, tag="read_prefix"):
    """A query to read `count` units of a pinned prefix, from unit `first`.

    A query for 0 units returns only the prefix's shape.
    """

    pin_id: str
    first: int = 0
    count: int = 0


class ImportState(CarriedReply, frozen=True, kw_only=True, tag="import_state"):
    """The reply to each query of an import. `is_ready` tells that the units may be written."""

    is_ready: bool = True


class BeginImport(Query[ImportState], frozen=True, kw_only=True, tag="begin_import"):
    """A query to make room for a prefix, in units of `unit_bytes`. Idempotent."""

    import_id: str
    token_ids: bytes  # int32, little endian; whole blocks
    namespace: bytes
    block_keys: bytes  # 16 bytes for every block
    unit_bytes: int
    state_units: int


class WriteImport(Query[ImportState], frozen=True, kw_only=True, tag="write_import"):
    """A query to write whole units, the first of which is unit `first`."""

    import_id: str
    first: int
    payload: bytes


class EndImport(Query[ImportState], frozen=True, kw_only=True, tag="end_import"):
    """A query to put the written blocks in the cache, or to drop the import."""

    import_id: str
    is_kept: bool = True


Carrying = ReadPrefix | BeginImport | WriteImport | EndImport
Carried = PrefixUnits | ImportState
