"""Triton's interpreter without the work that it does in vain.

For a launch the interpreter replaces the operations of `triton.language` by ones on arrays, and at
its end it puts them back. It looks for operations to replace again whenever one device function
calls another, in every program of the grid; there are none left then, but this search was half of
the time that kernels took on a CPU. Here it is done once a launch, and once again where a function
sees the language's other module, `triton.language.core`, too. What that replaces the interpreter
never puts back, and no kernel could be compiled in this process afterwards; here all is put back.

For each sum and product of integers the interpreter computes whether it overflows, and drops the
answer without its option `debug`. For each array it makes a table of all types to look up one. Both
are left out: a third of the time that was left.

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
    """What a launch replaced."""

    def restore(self) -> None: ...


POINTER = np.dtype(np.uint64)
Prepare = Callable[[FunctionType], Replaced]


class PreparedOnce:
    """In the place of the interpreter's `_patch_lang`, and of what that returns."""

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
        """The launch has ended: everything is put back, the last replaced first."""
        while self._replaced:
            self._replaced.pop().restore()
        self._prepared.clear()


class ArrayTypes:
    """In the place of the interpreter's `_get_np_dtype`: each type is looked up once."""

    def __init__(self, look_up: Callable[[tl.dtype], np.dtype[Any]]) -> None:
        self._look_up = cache(look_up)

    def __call__(self, of: tl.dtype) -> np.dtype[Any]:
        element = of.scalar
        return POINTER if isinstance(element, tl.pointer_type) else self._look_up(element)


@pytest.fixture(scope="session", autouse=True)
def prepared_once() -> Iterator[None]:
    """For every test of a package whose conftest imports this."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "it would say that integers overflow"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", PreparedOnce(interpreter._patch_lang))
        patch.setattr(interpreter, "_get_np_dtype", ArrayTypes(interpreter._get_np_dtype))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield
