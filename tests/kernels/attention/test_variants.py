"""Windows, soft caps and sinks, alone and together, against plain runs of keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.ops import Ops
from tests.kernels.cases import Case, Geometry, make_case, poisoned_memory, relative_error

# Contexts about the sizes of blocks, tiles and windows, and prompts that begin in the middle.
ROWS = [(1, 1), (1, 16), (1, 130), (1, 700), (1, 259), (5, 5), (40, 100), (7, 300), (150, 410)]
WINDOWS = [1, 16, 17, 64, 128, 300, 10_000]


def attend(ops: Ops, case: Case) -> Tensor:
    with poisoned_memory():
        return ops.paged_attention(case.q, case.kv, case.layout, *case.how)


def sinks_for(case: Case) -> Tensor:
    """Of the size of scores: some heads give most of their weight to them, others little."""
    return torch.linspace(-3.0, 6.0, case.q.shape[1]).to(case.q.dtype)


def with_all(case: Case, window: int | None) -> Case:
    return replace(case, window=window, softcap=2.0, sinks=sinks_for(case))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window(ops: Ops, window: int) -> None:
    case = replace(make_case(Geometry(), ROWS), window=window)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("window", [None, 1, 48, 128, 10_000])
def test_a_window_with_capped_scores_and_sinks(ops: Ops, window: int | None) -> None:
    case = with_all(make_case(Geometry(), ROWS), window)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("part", ["softcap", "sinks"])
def test_each_alone(ops: Ops, part: str) -> None:
    case = make_case(Geometry(), ROWS)
    case = replace(case, **{part: 1.5 if part == "softcap" else sinks_for(case)})
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("part", ["window", "softcap", "sinks"])
def test_each_shows(ops: Ops, part: str) -> None:
    """The control: without one of them attention is another one."""
    case = with_all(make_case(Geometry(), ROWS), 64)
    without = replace(case, **{part: None})
    assert relative_error(attend(ops, without), case.truth()) > 0.05
