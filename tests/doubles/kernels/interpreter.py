"""Triton's interpreter without its needless work.

When a launch begins, the interpreter replaces the operations of `triton.language` by operations on
arrays. When the launch ends, it restores them. It searches for operations to replace again whenever
one device function calls another, in every program of the grid. No operation is left to replace by
then, but this search was half of the time that kernels took on a CPU. Here the search is done once
a launch, and once more for a function that also uses the module `triton.language.core`. The
interpreter never restores the operations of that module, so that no kernel could be compiled in
this process afterwards; here all are restored.

For each sum and product of integers, the interpreter computes whether it overflows, and drops the
result unless its option `debug` is set. For each array, it makes a table of all types to look up
one type. Both are left out: they took a third of the remaining time.

For each array Triton makes constants of its sizes, checks that they are powers of two, and writes
the name of the array's type. Here this is done once for each shape and type of elements. Arrays
with the same constants have the same shape, and are not compared size by size. An array's element
size is not compared with its type's, and only lists and tuples are searched for constants.

This module uses private names of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import pytest
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


class Replaced(Protocol):
    """The operations that a launch has replaced."""

    def restore(self) -> None: ...


POINTER = np.dtype(np.uint64)
Prepare = Callable[[FunctionType], Replaced]
_broadcast = TritonSemantic.broadcast_impl_value
_unwrap = core._unwrap_if_constexpr
NESTED = (list, tuple, core.tuple)


class PreparedOnce:
    """The replacement of the interpreter's `_patch_lang`, and of its result."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._replaced: list[Replaced] = []
        self._prepared: set[frozenset[int]] = set()

    def __call__(self, function: FunctionType) -> Replaced:
        seen = frozenset(id(m) for m in function.__globals__.values() if m is tl or m is tl.core)
        if seen not in self._prepared:
            self._replaced.append(self._prepare(function))
            self._prepared.add(seen)
        return self

    def restore(self) -> None:
        """Restore all operations after a launch, the last replaced first."""
        while self._replaced:
            self._replaced.pop().restore()
        self._prepared.clear()


class ArrayTypes:
    """The replacement of the interpreter's `_get_np_dtype`: each type is looked up once."""

    def __init__(self, look_up: Callable[[tl.dtype], np.dtype[Any]]) -> None:
        self._look_up = cache(look_up)

    def __call__(self, of: tl.dtype) -> np.dtype[Any]:
        element = of.scalar
        return POINTER if isinstance(element, tl.pointer_type) else self._look_up(element)


def constructors() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return constructors of block types and of arrays that read each shape once.

    A block type has an additional attribute: `sizes`, the `shape` and `numel` of its arrays.
    """
    read, known = core.block_type.__init__, dict[tuple[str, tuple[int, ...]], dict[str, Any]]()
    of_scalars = core.tuple([]), core.constexpr(1)

    def describe(block: Any, element_ty: tl.dtype, shape: Iterable[Any]) -> None:
        sizes = tuple([one.value if isinstance(one, core.constexpr) else one for one in shape])
        found = known.get((element_ty.name, sizes))
        if found is None:
            read(block, element_ty, list(sizes))
            constants = core.tuple([core.constexpr(size) for size in sizes])
            block.sizes = constants, core.constexpr(block.numel)
            known[element_ty.name, sizes] = dict(vars(block))
        else:
            block.__dict__.update(found)
            block.element_ty = element_ty

    def make(array: Any, handle: object, of: Any) -> None:
        array.handle, array.type, array.dtype = handle, of, of.scalar
        array.shape, array.numel = of.sizes if of.is_block() else of_scalars

    return describe, make


def broadcast(semantic: TritonSemantic, left: Any, right: Any) -> tuple[Any, Any]:
    """Give two arrays a common shape. Replaces `broadcast_impl_value`."""
    return (left, right) if left.shape is right.shape else _broadcast(semantic, left, right)


def unwrap(one: Any) -> Any:
    """Return a constant's value, and anything else unchanged. Replaces `_unwrap_if_constexpr`."""
    if type(one) is core.constexpr:
        return one.value
    return _unwrap(one) if isinstance(one, NESTED) else one


@pytest.fixture(scope="session", autouse=True)
def prepared_once() -> Iterator[None]:
    """Use these replacements in every test of a package whose conftest imports this fixture."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "it would say that integers overflow"
    describe, make = constructors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", PreparedOnce(interpreter._patch_lang))
        patch.setattr(interpreter, "_get_np_dtype", ArrayTypes(interpreter._get_np_dtype))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        patch.setattr(core.block_type, "__init__", describe)
        patch.setattr(core.tensor, "__init__", make)
        patch.setattr(core, "_unwrap_if_constexpr", unwrap)
        patch.setattr(interpreter.TensorHandle, "__post_init__", lambda handle: None)
        patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast)
        yield
