"""Decode rows that share a prefix: the result is the same whether they read it together or
separately.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.batch_layout import SharedPrefix
from kernels.ops import Ops, torch_ops
from tests.doubles.engine.device.shared_prefix import with_units
from tests.kernels.cases import Case, Geometry, make_case, poisoned_memory, relative_error

Groups = list[tuple[int, int]]  # (number of rows, number of tokens that they read together)
BLOCK = 16

FORESTS: dict[str, tuple[list[int], Groups]] = {
    "two-rows": ([40, 50], [(2, 32)]),
    "nothing-shared": ([40, 50], [(1, 0), (1, 0)]),
    "one-alone-among-groups": ([70, 90, 33, 81, 70], [(2, 64), (1, 0), (2, 48)]),
    "all-but-the-new-token": ([33, 33, 33], [(3, 32)]),
    "more-rows-than-one-pass-takes": ([100 + row for row in range(37)], [(37, 96)]),
    "long-enough-to-split": ([700, 650, 641], [(3, 640)]),
    "an-empty-group": ([40, 50], [(0, 0), (2, 32), (0, 0)]),
    "a-row-of-padding": ([40, 50, 0], [(2, 32), (1, 0)]),
}


def grow(case: Case, groups: Groups) -> Case:
    """Return the case with equal leading keys in each group, and with the groups in its layout."""
    tables, rows = case.layout.block_tables.clone(), list(case.rows)
    own_starts = torch.zeros_like(case.layout.context_lens)
    starts = [0]
    for count, end in groups:
        first = starts[-1]
        starts.append(first + count)
        for row in range(first, first + count):
            tables[row, : end // BLOCK] = tables[first, : end // BLOCK]
            q, keys, values = (part.clone() for part in rows[row])
            keys[:end] = rows[first][1][:end]
            values[:end] = rows[first][2][:end]
            rows[row] = (q, keys, values)
            own_starts[row] = end
    shared = SharedPrefix(
        group_starts=torch.tensor(starts, dtype=torch.int32, device=tables.device),
        key_ends=torch.tensor([end for _, end in groups], dtype=torch.int32, device=tables.device),
        own_starts=own_starts,
        max_group_rows=max(count for count, _ in groups),
    )
    layout = replace(case.layout, block_tables=tables, shared=shared)
    layout = with_units(layout, case.kv, case.q.shape[1])
    return replace(case, layout=layout, rows=tuple(rows))


def attend(ops: Ops, case: Case) -> Tensor:
    with poisoned_memory():
        return ops.paged_attention(case.q, case.kv, case.layout, *case.how)


@pytest.mark.parametrize("forest", FORESTS)
def test_forests(ops: Ops, forest: str) -> None:
    lengths, groups = FORESTS[forest]
    case = grow(make_case(Geometry(), [(1, length) for length in lengths]), groups)
    truth = case.truth().nan_to_num()  # rows without keys have the output 0
    assert relative_error(attend(ops, case), truth) < 1e-5


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(16, 1, 64),
        Geometry(7, 1, 64),
        Geometry(3, 3, 80),
        Geometry(8, 2, 32, dtype=torch.float16),
    ],
    ids=str,
)
def test_geometries(ops: Ops, geometry: Geometry) -> None:
    case = grow(make_case(geometry, [(1, 90 + row) for row in range(6)]), [(1, 0), (5, 80)])
    bound = 1e-5 if geometry.dtype == torch.float32 else 2e-3
    assert relative_error(attend(ops, case), case.truth()) < bound


def test_the_kernel_goes_by_the_plan(ops: Ops) -> None:
    """Change the plan (positive control): the kernel's result changes, but the reference reads the
    tables.
    """
    lengths, groups = FORESTS["two-rows"]
    case = make_case(Geometry(), [(1, length) for length in lengths])
    grown = grow(case, groups).layout
    untrue = replace(grown, block_tables=case.layout.block_tables)
    got = attend(ops, replace(case, layout=untrue))
    assert relative_error(got[:1], case.truth()[:1]) < 1e-5
    assert (relative_error(got[1:], case.truth()[1:]) < 1e-5) == (ops == torch_ops())
