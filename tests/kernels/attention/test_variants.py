"""Sliding windows, soft caps and sinks, alone and together, compared with contiguous keys and
values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention.decode.split_sizes import most_window_tiles, split_window
from kernels.attention.tuning import SHORT_WINDOW, decode_tuning, prefill_tuning, window_tuning
from kernels.attention.variant import AttentionVariant
from kernels.errors import UnsupportedShape
from kernels.ops import Ops, torch_ops
from tests.kernels.cases import (
    NO_BLOCK_IDS,
    Case,
    Geometry,
    make_case,
    poisoned_memory,
    relative_error,
)
from tests.kernels.test_shared_prefix import grow

# Contexts near the sizes of blocks, tiles and windows, and prompts that begin in the middle.
ROWS = [(1, 1), (1, 16), (1, 130), (1, 700), (5, 5), (40, 100), (3, 300), (70, 150)]
ROWS_THAT_SKIP = (1, 700), (20, 330)
FEW_ROWS = [(1, 30), (1, 90), (9, 70)]


def attend(ops: Ops, case: Case) -> Tensor:
    with poisoned_memory():
        return ops.paged_attention(case.q, case.kv, case.layout, *case.how)


def sinks_for(case: Case) -> Tensor:
    """Make sinks as large as scores: some heads give the sink most of their weight, others
    little.
    """
    return torch.linspace(-3.0, 6.0, case.q.shape[1]).to(case.q.dtype)


def with_all(case: Case, window: int | None) -> Case:
    return replace(case, window=window, softcap=2.0, sinks=sinks_for(case))


# A tile has 128 float32 keys of 32 numbers: windows below one tile, of one, and of several.
@pytest.mark.parametrize("window", [1, 16, 17, 128, 300, 10_000])
def test_a_window(ops: Ops, window: int) -> None:
    case = replace(make_case(Geometry(), ROWS), window=window)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("window", [None, 48, 300])
def test_a_window_with_capped_scores_and_sinks(ops: Ops, window: int | None) -> None:
    case = with_all(make_case(Geometry(), ROWS), window)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("window", [48, SHORT_WINDOW])
def test_a_short_window_of_16_bits_has_tiles_of_its_own(ops: Ops, window: int) -> None:
    assert prefill_tuning(32, torch.float16, window) != prefill_tuning(32, torch.float16)
    case = with_all(make_case(Geometry(dtype=torch.float16), ROWS), window)
    assert relative_error(attend(ops, case), case.truth()) < 2e-3


@pytest.mark.parametrize("part", ["softcap", "sinks"])
def test_each_alone(ops: Ops, part: str) -> None:
    case = make_case(Geometry(), FEW_ROWS)
    changed: dict[str, Any] = {part: 1.5 if part == "softcap" else sinks_for(case)}
    case = replace(case, **changed)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("part", ["window", "softcap", "sinks"])
def test_each_shows(ops: Ops, part: str) -> None:
    """Leave out the window, cap or sinks (positive control): attention has another result."""
    case = with_all(make_case(Geometry(), FEW_ROWS), 20)
    changed: dict[str, Any] = {part: None}
    without = replace(case, **changed)
    assert relative_error(attend(ops, without), case.truth()) > 0.05


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(8, 1, 64, dtype=torch.float16),
        Geometry(7, 1, 64),
        Geometry(4, 2, 64, block_size=256),
        Geometry(2, 1, 256, block_size=32),
        Geometry(6, 2, 80),
    ],
    ids=str,
)
def test_geometries(ops: Ops, geometry: Geometry) -> None:
    case = with_all(make_case(geometry, [*FEW_ROWS, (1, 400)], decodes=2), 61)
    bound = 1e-5 if geometry.dtype == torch.float32 else 2e-3
    assert relative_error(attend(ops, case), case.truth()) < bound


@pytest.mark.parametrize("window", [None, 16, 100, 660])
def test_rows_that_share_a_prefix(ops: Ops, window: int | None) -> None:
    """Share a prefix after, within or before which the rows' windows begin."""
    case = make_case(Geometry(), [(1, 700), (1, 650), (1, 641), (1, 90)])
    case = with_all(grow(case, [(3, 640), (1, 0)]), window)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


def test_what_lies_before_a_window_is_not_read(ops: Ops) -> None:
    """Put NaN into the blocks before a window's first tile, which must not be read."""
    window, (decode, prompt) = 40, ROWS_THAT_SKIP
    case = replace(make_case(Geometry(), [decode, prompt]), window=window)
    tables, tile = case.layout.block_tables.clone(), prefill_tuning(32, torch.float32).tile
    poison = case.kv.shape[0] - 1
    tables[0, : (decode[1] - window) // 16] = poison
    seen = (prompt[1] - prompt[0] + 1 - window) // tile * tile
    tables[1, : seen // 16] = poison
    poisoned = replace(case, layout=replace(case.layout, block_tables=tables))
    assert relative_error(attend(ops, poisoned), case.truth()) < 1e-5
    tables[:, seen // 16] = poison  # positive control: poison in one block more is read
    assert attend(ops, poisoned)[1].isnan().any()


@pytest.mark.parametrize("chunk", [7, 25])
def test_chunks_of_a_prompt_equal_one_shot(ops: Ops, chunk: int) -> None:
    whole = with_all(make_case(Geometry(), [(50, 65)]), 20)
    pieces = []
    for start in range(0, 50, chunk):
        end = min(start + chunk, 50)
        layout = replace(
            whole.layout,
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lens=torch.tensor([15 + end], dtype=torch.int32),
            num_decodes=int(end - start == 1),
            max_context_len=15 + end,
        )
        pieces.append(attend(ops, replace(whole, q=whole.q[start:end], layout=layout)))
    assert relative_error(torch.cat(pieces), attend(ops, whole).double()) < 1e-6


@pytest.mark.parametrize("window", [None, 20, 300])
def test_padding_gives_zero(ops: Ops, window: int | None) -> None:
    """Give 0 for padding, even with sinks, and in a launch for longer rows."""
    case = with_all(make_case(Geometry(), [(1, 40), (1, 40), (9, 30), (7, 40)]), window)
    contexts = torch.tensor([40, 0, 30, 0], dtype=torch.int32)
    tables = case.layout.block_tables.clone()
    tables[1], tables[3] = NO_BLOCK_IDS[0], NO_BLOCK_IDS[1]
    layout = replace(case.layout, context_lens=contexts, block_tables=tables, max_context_len=9_000)
    got, truth = attend(ops, replace(case, layout=layout)), case.truth()
    truth[1], truth[-7:] = 0, 0
    assert relative_error(got, truth) < 1e-5


def test_a_row_alone_equals_the_row_in_a_batch() -> None:
    """Compute a row alone and in a batch: the reference gives the same bits."""
    case = with_all(make_case(Geometry(), FEW_ROWS), 20)
    alone = replace(
        case.layout,
        query_starts=torch.tensor([0, 9], dtype=torch.int32),
        context_lens=case.layout.context_lens[2:],
        block_tables=case.layout.block_tables[2:],
        num_decodes=0,
    )
    got = attend(torch_ops(), replace(case, q=case.q[2:], layout=alone))
    assert torch.equal(got, attend(torch_ops(), case)[2:])


@pytest.mark.parametrize("heads", [1, 8, 300, 4096])
@pytest.mark.parametrize("window", [128, 512, 4096])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_the_splits_of_a_window_hold_it(head_dim: int, window: int, heads: int) -> None:
    tuning = window_tuning(head_dim, torch.bfloat16)
    most = most_window_tiles(window, 16, tuning)
    assert (most - 1) * tuning.tile < window + 15 <= most * tuning.tile
    cut = split_window(most, heads, tuning)
    assert cut.splits * cut.tiles >= most > (cut.splits - 1) * cut.tiles
    # the memory reserved for splits is enough for them
    bound = decode_tuning(head_dim, torch.bfloat16).splits + heads
    assert heads * cut.splits <= bound


@pytest.mark.parametrize(("field", "value"), [("window", 0), ("window", -5), ("softcap", 0.0)])
def test_refuses_what_means_nothing(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedShape, match=str(value)):
        replace(AttentionVariant(0.1, window=1, softcap=1.0), **{field: value})
