"""The interpreter that prepares once per launch computes the same as Triton's own interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.doubles.kernels.interpreter import Prepare, PreparedOnce, Replaced

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)


@triton.jit
def _twice(number: tl.tensor) -> tl.tensor:
    return number + number


@triton.jit
def _sum_kernel(numbers: tl.tensor, sums: tl.tensor, SIZE: tl.constexpr) -> None:
    row = tl.program_id(0)
    loaded = tl.load(numbers + row * SIZE + tl.arange(0, SIZE))
    tl.store(sums + row, tl.sum(_twice(_twice(loaded)), axis=0))


class Counted:
    """A function that counts its calls."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self.count = 0

    def __call__(self, function: FunctionType) -> Replaced:
        self.count += 1
        return self._prepare(function)


def own_prepare() -> Prepare:
    """Return Triton's own preparation, which the fixtures of some packages replace."""
    installed: Prepare = interpreter._patch_lang
    while isinstance(installed, PreparedOnce):
        installed = installed._prepare
    return installed


PLACES: tuple[Any, ...] = (tl, tl.core, tl.math, tl.tensor)


def language() -> list[dict[str, object]]:
    """Return all attributes of Triton's language modules, and of its tensor class."""
    return [{name: getattr(place, name) for name in dir(place)} for place in PLACES]


@pytest.fixture(autouse=True)
def language_put_back() -> Iterator[None]:
    """Restore all operations after a test of Triton's own interpreter, which restores only some."""
    before = [dict(vars(place)) for place in PLACES]
    yield
    for place, defined in zip(PLACES, before, strict=True):
        for name, one in dict(vars(place)).items():
            if name not in defined:
                delattr(place, name)
            elif one is not defined[name]:
                setattr(place, name, defined[name])


def sums(rows: int, prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the kernel's results, with the language prepared by `prepare`."""
    numbers, into = torch.arange(rows * 4), torch.zeros(rows, dtype=torch.int64)
    with monkeypatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", prepare)
        _sum_kernel[(rows,)](numbers, into, SIZE=4)
    return into.tolist()


def test_each_launch_is_prepared_for_and_none_of_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the first preparation also rewrites the functions
    sums(1, PreparedOnce(own_prepare()), monkeypatch)
    for_few, for_many = Counted(own_prepare()), Counted(own_prepare())
    assert sums(2, PreparedOnce(for_few), monkeypatch) == [24, 88]
    assert sums(9, PreparedOnce(for_many), monkeypatch) == [4 * (16 * row + 6) for row in range(9)]
    assert 0 < for_few.count == for_many.count < 9


def test_the_interpreter_by_itself_prepares_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the preparations of Triton's own interpreter (positive control): one for each call."""
    alone = Counted(own_prepare())
    assert sums(9, alone, monkeypatch) == sums(9, PreparedOnce(own_prepare()), monkeypatch)
    assert alone.count > 9 * 3


def test_what_a_launch_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = language()
    assert sums(2, PreparedOnce(own_prepare()), monkeypatch) == [24, 88]
    assert language() == before
    assert tl.core.is_builtin(tl.load), "Triton's own, which it marks"


def test_the_interpreter_by_itself_leaves_a_part_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Triton's own interpreter (positive control): it leaves operations replaced.

    After that, no kernel could be compiled in this process.
    """
    before = language()
    assert sums(2, own_prepare(), monkeypatch) == [24, 88]
    assert language() != before


@pytest.mark.parametrize("element", [tl.float32, tl.pointer_type(tl.int8)])
def test_types_and_arrays_have_the_attributes_that_triton_gives_them(element: tl.dtype) -> None:
    for _ in range(2):  # the second time is served from the cache
        block = tl.block_type(element, [tl.constexpr(2), 4])
        assert (str(block), block.numel, block.element_ty) == (
            f"<['2', '4'], {element}>",
            8,
            element,
        )
        array = tl.tensor(None, block)
        assert ([one.value for one in array.shape], array.numel.value) == ([2, 4], 8)
        assert (array.type, array.dtype, block.element_ty) == (block, element, element)
    scalar = tl.tensor(None, element)
    assert (len(scalar.shape), scalar.numel.value, scalar.type) == (0, 1, element)


@pytest.mark.parametrize("shape", [[3], [], [1 << 21]])
def test_a_shape_that_no_gpu_could_compute_is_refused_each_time(shape: list[int]) -> None:
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            tl.block_type(tl.float32, shape)
