"""Two block origins that differ anywhere have different fingerprints, however nested the difference
is.

The walk follows the types of fields down from `BlockOrigin`, through unions, tuples and weight
formats, so it covers a new field of any config without a change here. `SIMPLE` has the values of
each type. An unknown type raises KeyError.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine.models import weight_formats
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.modules import WeightFormat
from engine.models.names import PLAIN_NAMES
from engine.models.weight_formats.fp8 import Fp8Format
from engine.models.weight_formats.ignored import Ignored
from engine.models.weight_formats.int4 import Int4Format
from engine.startup.fingerprint import NOT_IN_BLOCKS, BlockOrigin
from kernels.norms.gate import Gate
from storage.layouts.kv_layout import KvGroup, KvSlice

SIMPLE: dict[Any, list[Any]] = {
    NoneType: [None],
    bool: [False, True],
    bytes: [b"a", b"b"],
    float: [0.0, 0.5],
    int: [0, 1],
    range: [range(0), range(1)],
    str: ["a", "b"],
}


def formats() -> list[type]:
    """Return all weight formats: the dataclasses in their modules that have a format's methods."""
    modules = pkgutil.iter_modules(weight_formats.__path__, f"{weight_formats.__name__}.")
    found = chain(*(vars(import_module(one.name)).values() for one in modules))
    types = {one for one in found if isinstance(one, type) and is_dataclass(one)}
    return sorted(
        (one for one in types if hasattr(one, "experts") and hasattr(one, "num_bytes")),
        key=lambda one: one.__name__,
    )


def values(hint: Any) -> list[Any]:
    """Return values of this type: a usual value, and others that differ from it in one field."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return list(args)
    if origin in (Union, UnionType):
        return list(chain(*map(values, args)))
    if origin is tuple:
        alike = args[-1] is ...
        firsts = values(args[0]) if alike else [values(arg)[0] for arg in args]
        return [(one,) for one in firsts] if alike else list(_places(firsts, args))
    if hint is WeightFormat:
        return list(chain(*map(values, formats())))
    return list(_of_fields(hint)) if is_dataclass(hint) else SIMPLE[hint]


def _places(usual: list[Any], hints: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield tuple(usual)
    for place, hint in enumerate(hints):
        for other in values(hint)[1:]:
            yield (*usual[:place], other, *usual[place + 1 :])


def _of_fields(kind: Any) -> Iterator[Any]:
    """Yield instances with one field changed, except those that cannot be made."""
    hints = get_type_hints(kind)
    tried = {field.name: values(hints[field.name]) for field in fields(kind)}
    usual = kind(**{name: found[0] for name, found in tried.items()})
    yield usual
    for name, found in tried.items():
        for other in found[1:]:
            with suppress(ValueError):
                yield replace(usual, **{name: other})


def in_blocks(origin: BlockOrigin) -> BlockOrigin:
    """Return the origin without the fields that do not change a block's bits."""
    model = replace(
        origin.model, eos_token_ids=(), dtype=None, names=PLAIN_NAMES, possible_head=None
    )
    return replace(origin, model=model)


def test_origins_that_differ_anywhere_have_other_fingerprints() -> None:
    origins: dict[bytes, BlockOrigin] = {}
    for origin in values(BlockOrigin):
        told = origins.setdefault(origin.fingerprint(), origin)
        assert in_blocks(told) == in_blocks(origin), "two of one fingerprint"
    met = set(chain(*map(types_in, origins.values())))
    assert met >= {
        *(AttentionConfig, MixtureConfig, RmsNormConfig, RopeConfig, Gate, KvGroup, KvSlice),
        *(Fp8Format, Int4Format, Ignored),
    }, "the control: the walk gets to the bottom"
    assert len(origins) > 60


def types_in(value: Any) -> Iterator[type]:
    if isinstance(value, tuple):
        yield from chain(*map(types_in, value))
    elif is_dataclass(value):
        yield type(value)
        for field in fields(value):
            yield from types_in(getattr(value, field.name))


@dataclass(frozen=True, slots=True)
class Forgetful(BlockOrigin):
    """Positive control: a fingerprint that ignores windows."""

    def fingerprint(self) -> bytes:
        groups = tuple(replace(group, window=None) for group in self.kv.groups)
        return BlockOrigin.fingerprint(replace(self, kv=replace(self.kv, groups=groups)))


def test_a_field_that_is_left_out_is_seen() -> None:
    prints = [origin.fingerprint() for origin in values(BlockOrigin)]
    forgetful = [origin.fingerprint() for origin in values(Forgetful)]
    assert len(set(forgetful)) < len(set(prints))


def test_what_is_left_out_is_what_is_listed() -> None:
    usual, *others = values(BlockOrigin)
    alike = {
        name
        for origin in others
        if origin.fingerprint() == usual.fingerprint()
        for name in (field.name for field in fields(usual.model))
        if getattr(origin.model, name) != getattr(usual.model, name)
    }
    assert alike == set(NOT_IN_BLOCKS)
