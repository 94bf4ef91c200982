"""The sums of counters: the Structs of several engines are added up field by field."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
K = TypeVar("K")
V = TypeVar("V")


def summed(parts: Sequence[S], **others: Any) -> S:
    """Add up the Structs `parts` field by field, except the fields in `others`.

    All other fields must be numbers, or Structs with `+`.
    """
    first = parts[0]
    totals = {
        name: _total([getattr(part, name) for part in parts])
        for name in first.__struct_fields__
        if name not in others
    }
    return type(first)(**totals, **others)


def merged(parts: Iterable[Mapping[K, V]], join: Callable[[list[V]], V]) -> dict[K, V]:
    """Merge the mappings. Join the values of equal keys by `join`."""
    values: dict[K, list[V]] = {}
    for part in parts:
        for key, value in part.items():
            values.setdefault(key, []).append(value)
    return {key: join(found) for key, found in values.items()}


def _total(values: Sequence[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
