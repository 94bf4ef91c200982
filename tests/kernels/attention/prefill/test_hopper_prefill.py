"""Prefill attention for Hopper gives the right results, computed in PyTorch on a CPU.

`test_on_gpu` tests the kernel itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.prefill import hopper_prefill, hopper_warps, prefill_attention
from kernels.attention.tuning import LEAST_HOPPER_WINDOW, hopper_tuning, prefill_tuning
from kernels.attention.variant import AttentionVariant
from kernels.launch.capability import HOPPER
from tests.doubles.kernels.torch_gluon import gluon_in_torch
from tests.kernels.cases import Case, Geometry, make_case, poisoned_memory, relative_error

GPT_OSS = Geometry(8, 1, 64, dtype=torch.float16)  # one KV head of gpt-oss
BOUND = 1e-3
# Contexts near the ends of tiles of 128 keys, and prompts that begin in the middle.
ROWS = [(40, 40), (3, 130), (33, 520), (2, 384), (128, 300)]


def attend(case: Case, programs: int = 1) -> Tensor:
    """Attend with one stage for each tile of a row; `programs`, the number of concurrent programs,
    decides the splits.
    """
    tuning = hopper_tuning(case.q.shape[2])
    tuning = replace(tuning, stages=1024 // tuning.tile, programs=programs)
    out = torch.empty_like(case.q)
    with (
        poisoned_memory(),
        gluon_in_torch(hopper_prefill, hopper_warps, kernel="_hopper_prefill_kernel"),
    ):
        prefill_attention.launch_tuned(case.q, case.kv, case.layout, *case.how, tuning, out)
    return out


def sinks_for(case: Case) -> Tensor:
    return torch.linspace(-3.0, 6.0, case.q.shape[1]).half()


@pytest.mark.parametrize("window", [None, 1, 100, 128, 300, 10_000])
def test_windows_and_sinks(window: int | None) -> None:
    case = replace(make_case(GPT_OSS, ROWS), window=window)
    plain = attend(case)
    assert relative_error(plain, case.truth()) < BOUND
    with_sinks = replace(case, sinks=sinks_for(case))
    truth = with_sinks.truth()
    assert relative_error(attend(with_sinks), truth) < BOUND
    # positive control: the plain result is far from the truth
    assert relative_error(plain, truth) > 0.05


@pytest.mark.parametrize("window", [None, 260])
def test_keys_that_are_split_are_merged_with_their_sinks(window: int | None) -> None:
    case = replace(make_case(GPT_OSS, [(3, 900), (5, 130)]), window=window)
    case = replace(case, sinks=sinks_for(case))
    assert relative_error(attend(case, programs=16), case.truth()) < BOUND


def test_a_row_of_padding_is_zero() -> None:
    case = replace(make_case(GPT_OSS, [(9, 30), (7, 40)]), window=20)
    case = replace(case, sinks=sinks_for(case))
    contexts = torch.tensor([30, 0], dtype=torch.int32)
    padded = replace(case, layout=replace(case.layout, context_lens=contexts))
    truth = case.truth()
    assert truth[-7:].abs().max() > 0.1
    truth[-7:] = 0
    assert relative_error(attend(padded), truth) < BOUND


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(7, 1, 64, dtype=torch.float16),
        Geometry(4, 2, 128, dtype=torch.float16),
        Geometry(8, 2, 64, block_size=256, dtype=torch.float16),
        Geometry(6, 1, 256, dtype=torch.float16),
        Geometry(3, 3, 256, block_size=128, dtype=torch.float16),
        Geometry(8, 2, 512, dtype=torch.float16),
    ],
    ids=str,
)
def test_geometries(geometry: Geometry) -> None:
    case = replace(make_case(geometry, ROWS[1:4]), window=200)
    case = replace(case, sinks=sinks_for(case))
    assert relative_error(attend(case), case.truth()) < BOUND


@pytest.mark.parametrize(
    ("window", "softcap", "head_dim", "served"),
    [
        (None, None, 64, True),
        (LEAST_HOPPER_WINDOW, None, 128, True),
        (LEAST_HOPPER_WINDOW - 1, None, 128, False),
        (None, 30.0, 128, False),
        (None, None, 256, True),
        (None, None, 96, False),
    ],
)
def test_what_it_serves(
    window: int | None,
    softcap: float | None,
    head_dim: int,
    served: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case(Geometry(4, 2, head_dim, dtype=torch.bfloat16), [(3, 20)])
    variant = AttentionVariant(case.scale, window, softcap)
    other = prefill_tuning(head_dim, torch.bfloat16)
    assert prefill_attention.tuning_for(case.q, case.kv, variant) == other
    monkeypatch.setattr(prefill_attention, "capability", lambda _: HOPPER)
    chosen = prefill_attention.tuning_for(case.q, case.kv, variant)
    assert chosen == (hopper_tuning(head_dim) if served else other)
