"""Whose row of the usage ledger counts what a request writes into the cache.

The engine is given the row as a label, keeps it beside the blocks and returns it when they are
found, perhaps to another gateway, for another tenant's request, days later. It never looks into it.

Knows: how a row becomes a label and a label a row. Does not know: what is counted (`usage`).
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import msgspec

_DECODER = msgspec.json.Decoder(tuple[str, str, str])


class Writer(NamedTuple):
    """A row of the ledger: a key of a tenant on one day, `YYYY-MM-DD` in UTC."""

    day: str
    tenant_id: str
    key_id: str

    def label(self) -> str:
        """The row as text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, label: str) -> Writer | None:
        """The row of a label; None if no gateway of this release has made it."""
        try:
            row = cls(*_DECODER.decode(label))
            is_day = str(date.fromisoformat(row.day)) == row.day
        except (msgspec.MsgspecError, ValueError):
            return None
        return row if is_day and row.tenant_id and row.key_id else None
