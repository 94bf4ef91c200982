"""Triton's interpreter, made to prepare `triton.language` once a launch.

For a launch the interpreter replaces the operations of `triton.language` by ones on arrays, and at
its end it puts them back. It looks for operations to replace again whenever one device function
calls another, in every program of the grid; there are none left then, but this search was half of
the time that kernels took on a CPU. Here it is done once a launch, and once again where a function
sees the language's other module, `triton.language.core`, too. What that replaces the interpreter
never puts back, and no kernel could be compiled in this process afterwards; here all is put back.

Knows: one private name of the interpreter. Does not know: any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Protocol

import pytest
import triton.language as tl
from triton.runtime import interpreter


class Replaced(Protocol):
    """What a launch replaced."""

    def restore(self) -> None: ...


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


@pytest.fixture(scope="session", autouse=True)
def prepared_once() -> Iterator[None]:
    """For every test of a package whose conftest imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", PreparedOnce(interpreter._patch_lang))
        yield
