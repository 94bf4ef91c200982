"""Decodes that share the reads of a prefix, with an fp8 cache; unwritten slots are NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.kv import fp8_kv
from kernels.ops import Ops
from tests.doubles.engine.device.shared_prefix import with_units
from tests.kernels.attention.kv.test_fp8_kv import layout_of, pool_of
from tests.kernels.cases import Case, Geometry, make_case, relative_error
from tests.kernels.test_shared_prefix import FORESTS, attend, grow


def in_fp8(case: Case) -> Case:
    """Return the batch over a pool in fp8; its reference has the dequantised numbers."""
    blocks, _, kv_heads, _, dim = case.kv.shape
    kv = pool_of(blocks, layout_of(kv_heads, dim), "cpu")[1]
    values, scales = fp8_kv.quantised(case.kv)
    kv.view(torch.uint8).copy_(values.view(torch.uint8))
    fp8_kv.scales_of(kv).copy_(scales)
    rows = tuple((q, written_out(keys), written_out(values)) for q, keys, values in case.rows)
    layout = with_units(case.layout, kv, case.q.shape[1])
    return replace(case, kv=kv, layout=layout, rows=rows)


def written_out(heads: Tensor) -> Tensor:
    values, scales = fp8_kv.quantised(heads)
    return values.float() * scales.float()[..., None]


@pytest.mark.parametrize("forest", ["one-alone-among-groups", "long-enough-to-split"])
def test_forests(ops: Ops, forest: str) -> None:
    lengths, groups = FORESTS[forest]
    case = grow(make_case(Geometry(), [(1, length) for length in lengths]), groups)
    rounded = in_fp8(case)
    assert relative_error(attend(ops, rounded), rounded.truth()) < 1e-5
    assert relative_error(attend(ops, case), rounded.truth()) > 1e-3, "rounding shows"
