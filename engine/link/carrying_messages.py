"""The queries that export a pinned prefix's KV from an engine, and import it into another.

    units of a prefix    its blocks, in order | its recurrent state, in pieces of a block's size

A unit has as many bytes as a block. A client repeats `BeginImport` until the reply has `is_ready`,
writes the units in any order, and ends the import. The blocks are then in the cache, and are leased
for a while so that the client can pin them.
"""

from __future__ import annotations

from engine.errors import EngineError, error_from_code
from engine.link.query import Query, Reply


class CarriedReply(Reply, frozen=True, kw_only=True):
    """The base class of the replies. If a query is refused, `code` is one of `engine.errors`."""

    code: str | None = None
    message: str = ""

    def error(self) -> EngineError | None:
        """Return the error of a refused query, or None for a successful query."""
        return None if self.code is None else error_from_code(self.code, self.message)


class PrefixUnits(CarriedReply, frozen=True, kw_only=True, tag="prefix_units"):
    """The reply to `ReadPrefix`: the numbers of units, and the bytes of the requested units."""

    unit_bytes: int = 0
    blocks: int = 0
    state_units: int = 0  # number of units of the recurrent state; 0 without recurrent layers
    payload: bytes = b""


class ReadPrefix(Query[PrefixUnits], frozen=True, kw_only=True, tag="read_prefix"):
    """A query to read `count` units of a pinned prefix, from unit `first`.

    A query for 0 units returns only the number and the size of the units.
    """

    pin_id: str
    first: int = 0
    count: int = 0


class ImportState(CarriedReply, frozen=True, kw_only=True, tag="import_state"):
    """The reply to each query of an import. Units may be written if `is_ready` is True."""

    is_ready: bool = True


class BeginImport(Query[ImportState], frozen=True, kw_only=True, tag="begin_import"):
    """A query to make room for a prefix whose units have `unit_bytes`. May be repeated."""

    import_id: str
    token_ids: bytes  # the tokens of whole blocks, int32, little endian
    namespace: bytes
    block_keys: bytes  # the blocks' keys, 16 bytes each
    unit_bytes: int
    state_units: int


class WriteImport(Query[ImportState], frozen=True, kw_only=True, tag="write_import"):
    """A query to write units, beginning with unit `first`. Each unit is complete."""

    import_id: str
    first: int
    payload: bytes


class EndImport(Query[ImportState], frozen=True, kw_only=True, tag="end_import"):
    """A query to put the written blocks in the cache, or to drop the import."""

    import_id: str
    is_kept: bool = True


Carrying = ReadPrefix | BeginImport | WriteImport | EndImport
Carried = PrefixUnits | ImportState
