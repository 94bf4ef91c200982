"""Published prefixes as the operator reads them."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.state.records import PrefixSource

State = Literal["warm", "warming", "refused", "no engine"]


class PrefixView(msgspec.Struct, frozen=True, kw_only=True):
    """One published prefix. `blocks` are pinned; the last one need not be full."""

    id: str
    name: str
    version: int
    scope: str
    created_at: float
    tokens: int
    blocks: int | None  # None: no engine says how large a block is
    state: State
    reason: str | None  # why it is refused


class PrefixWithSource(PrefixView, frozen=True, kw_only=True):
    """Answer of GET /admin/prefixes/{id}: also what was published."""

    source: PrefixSource


class PrefixList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/prefixes: the latest version of each."""

    prefixes: list[PrefixView]


class DeletedPrefix(msgspec.Struct, frozen=True):
    """Answer of DELETE."""

    id: str
