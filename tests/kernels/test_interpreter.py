"""The interpreter that prepares once a launch computes what Triton's own does."""

from __future__ import annotations

import os
from types import FunctionType

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.doubles.interpreter import Prepare, PreparedOnce, Replaced

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
    """Counts what it is asked to prepare."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self.count = 0

    def __call__(self, function: FunctionType) -> Replaced:
        self.count += 1
        return self._prepare(function)


def own_prepare() -> Prepare:
    """Triton's, from under the one that all tests of this room run with."""
    installed = interpreter._patch_lang
    assert isinstance(installed, PreparedOnce)
    return installed._prepare


def sums(rows: int, *, once: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """The sums, and how often something was prepared."""
    counted = Counted(own_prepare())
    with monkeypatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", PreparedOnce(counted) if once else counted)
        numbers, into = torch.arange(rows * 4), torch.zeros(rows, dtype=torch.int64)
        _sum_kernel[(rows,)](numbers, into, SIZE=4)
        return into.tolist(), counted.count


def test_each_launch_is_prepared_for_and_none_of_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums(1, once=True, monkeypatch=monkeypatch)  # the very first launch rewrites the functions
    few, for_few = sums(2, once=True, monkeypatch=monkeypatch)
    many, for_many = sums(9, once=True, monkeypatch=monkeypatch)
    assert (few, many) == ([24, 88], [4 * (16 * row + 6) for row in range(9)])
    assert 0 < for_few == for_many < 9


def test_the_interpreter_by_itself_prepares_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    many, for_many = sums(9, once=False, monkeypatch=monkeypatch)
    assert many == sums(9, once=True, monkeypatch=monkeypatch)[0]
    assert for_many > 9 * 3


def test_what_a_launch_replaced_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sums(2, once=True, monkeypatch=monkeypatch)
    assert tl.core.is_builtin(tl.load), "Triton's own, which it marks"
    assert tl.core.is_builtin(tl.program_id)
