"""What is shown of a record: its fields of the same names, and what is computed from it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

V = TypeVar("V", bound=msgspec.Struct)


def view_of(kind: type[V], *records: msgspec.Struct, **computed: Any) -> V:
    """A `kind` with the fields that it has in common with `records`, and those `computed`."""
    common = {
        name: getattr(record, name)
        for record in records
        for name in record.__struct_fields__
        if name in kind.__struct_fields__
    }
    return kind(**(common | computed))
