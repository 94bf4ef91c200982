"""Triton's interpreter without its needless work.

For a launch, the interpreter replaces the operations of `triton.language` by operations on arrays,
and restores them at its end. It searches for operations to replace again whenever one device
function calls another, in every program of the grid. There are none left then, but this search was
half of the time that kernels took on a CPU. Here the search is done once a launch, and once more
for a function that also uses the module `triton.language.core`. The interpreter never restores the
operations of that module, so that no kernel could be compiled in this process afterwards; here all
are restored.

For each sum and product of integers, the interpreter computes whether it overflows, and drops the
result unless its option `debug` is set. For each array, it makes a table of all types to look up
one type. Both are left out: they took a third of the remaining time.

Knows: private names of the interpreter. Does not know: any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any, Protocol

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter


class Replaced(Protocol):
    """The operations that a launch replaced."""

    def restore(self) -> None: ...


POINTER = np.dtype(np.uint64)
Prepare = Callable[[FunctionType], Replaced]


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


@pytest.fixture(scope="session", autouse=True)
def prepared_once() -> Iterator[None]:
    """Use these replacements in every test of a package whose conftest imports this fixture."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "it would say that integers overflow"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", PreparedOnce(interpreter._patch_lang))
        patch.setattr(interpreter, "_get_np_dtype", ArrayTypes(interpreter._get_np_dtype))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield
