"""Attention through block tables, compared with attention over contiguous keys and values.

The cases put poison outside each row's context (see `cases`), so each test also shows that nothing
outside is read.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention.tuning import decode_tuning
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

Rows = list[tuple[int, int]]  # (new tokens, context)

BATCHES: dict[str, Rows] = {
    "one-token-alone": [(1, 1)],
    "decode-at-block-edges": [(1, 15), (1, 16), (1, 17), (1, 32)],
    "decode-of-uneven-lengths": [(1, 1), (1, 700), (1, 257)],
    "prefill-without-prefix": [(5, 5)],
    "prefill-of-whole-blocks": [(32, 32)],
    "prefill-over-one-token": [(6, 7)],
    "prefill-over-a-prefix": [(7, 40)],
    "prefill-over-a-prefix-of-blocks": [(16, 64)],
    "prefill-of-many-query-blocks": [(150, 150)],
    "prefill-of-uneven-rows": [(3, 3), (70, 90), (2, 131), (64, 64)],
    "mixed": [(1, 30), (1, 129), (9, 9), (40, 100), (1, 5), (2, 18)],
}
GEOMETRIES = [
    Geometry(1, 1, 16),
    Geometry(3, 3, 32),
    Geometry(16, 1, 64),
    Geometry(6, 2, 80),
    Geometry(5, 1, 96, block_size=32),
    Geometry(7, 1, 64),
    Geometry(4, 2, 128, block_size=32),
    Geometry(4, 2, 64, block_size=256),
    Geometry(2, 1, 256),
    Geometry(2, 1, 18),
    Geometry(4, 2, 32, dtype=torch.float16),
    Geometry(8, 2, 128, block_size=64, dtype=torch.float16),
]


def attend(ops: Ops, case: Case) -> Tensor:
    with poisoned_memory():
        return ops.paged_attention(case.q, case.kv, case.layout, *case.how)


def bound(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 2e-3


@pytest.mark.parametrize("batch", BATCHES)
def test_batches(ops: Ops, batch: str) -> None:
    case = make_case(Geometry(), BATCHES[batch])
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_geometries(ops: Ops, geometry: Geometry) -> None:
    case = make_case(geometry, BATCHES["mixed"])
    got = attend(ops, case)
    assert got.dtype == geometry.dtype
    assert relative_error(got, case.truth()) < bound(geometry.dtype)


def test_prefill_attention_is_right_for_rows_of_one_token(ops: Ops) -> None:
    case = make_case(Geometry(), [(1, 1), (1, 40), (1, 16)], decodes=0)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


def test_the_bound_on_the_context_shapes_the_launch_not_the_result(ops: Ops) -> None:
    case = make_case(Geometry(2, 1), [(1, 1), (1, 300)])
    wide = replace(case, layout=replace(case.layout, max_context_len=9_000))
    assert relative_error(attend(ops, wide), case.truth()) < 1e-5


@pytest.mark.parametrize("tiles", [1, 2, 5, 100])
@pytest.mark.parametrize("idle", [0, 7])
def test_where_rows_are_cut_does_not_change_the_result(ops: Ops, tiles: int, idle: int) -> None:
    """Compare results for any division of rows. `idle`: unused splits, as in a launch for longer
    rows.
    """
    case = make_case(Geometry(), [(1, 700), (1, 3), (1, 0), (1, 1_025), (1, 128)])
    keys = tiles * decode_tuning(32, torch.float32).tile
    more = sum(max(-(-length // keys), 1) - 1 for length in case.layout.context_lens.tolist())
    splits = torch.tensor([[keys, more + idle]], dtype=torch.int32)
    cut = replace(case, layout=replace(case.layout, splits=splits))
    truth = case.truth().nan_to_num()
    assert relative_error(attend(ops, cut), truth) < 1e-5
    whole = replace(case, layout=replace(case.layout, splits=None))
    assert relative_error(attend(ops, whole), truth) < 1e-5


def test_the_kernel_has_no_more_units_than_it_is_told(ops: Ops) -> None:
    """Allow one split too few (positive control): the last row is not written."""
    case = make_case(Geometry(), [(1, 700), (1, 300)])
    keys = decode_tuning(32, torch.float32).tile
    more = sum(-(-length // keys) - 1 for length in (700, 300))
    splits = torch.tensor([[keys, more - 1]], dtype=torch.int32)
    got = attend(ops, replace(case, layout=replace(case.layout, splits=splits)))
    assert relative_error(got[:1], case.truth()[:1]) < 1e-5
    assert (relative_error(got[1:], case.truth()[1:]) < 1e-5) == (ops == torch_ops())


def test_the_scale_is_the_callers(ops: Ops) -> None:
    case = replace(make_case(Geometry(), BATCHES["mixed"]), scale=0.5)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


def test_large_scores_do_not_overflow(ops: Ops) -> None:
    case = replace(make_case(Geometry(), BATCHES["mixed"]), scale=50.0)
    assert relative_error(attend(ops, case), case.truth()) < 1e-4


def test_padding_gives_zero_and_reads_nothing(ops: Ops) -> None:
    """Give 0 for padding: rows with context 0, decodes among decodes, and a last row with several
    tokens.
    """
    case = make_case(Geometry(), [(1, 40), (1, 40), (1, 300), (9, 30), (7, 40)])
    contexts = torch.tensor([40, 0, 300, 30, 0], dtype=torch.int32)
    tables = case.layout.block_tables.clone()
    tables[1], tables[4] = NO_BLOCK_IDS[0], NO_BLOCK_IDS[1]
    padded = replace(case, layout=replace(case.layout, context_lens=contexts, block_tables=tables))
    padded.q[1], padded.q[-7:] = torch.nan, torch.nan
    got = attend(ops, padded)
    truth = case.truth()
    truth[1], truth[-7:] = 0, 0
    assert relative_error(got, truth) < 1e-5
    assert not got[1].any()
    assert not got[-7:].any()


def test_a_suffix_of_a_long_prefix_is_split(ops: Ops) -> None:
    case = make_case(Geometry(), [(1, 30), (5, 900), (1, 600), (40, 530), (2, 2)])
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize(
    ("few", "longer"),
    [
        (5, []),
        (4, [700, 1400]),  # up to 11 splits, which a program merges 8 at a time
        # A program reads 128 lengths at a time, so the rows with two splits are in its second read.
        # Each row has as many programs as the longest might need, hence two splits.
        (128, [150, 250]),
    ],
)
def test_many_rows_of_mixed_lengths(ops: Ops, few: int, longer: list[int]) -> None:
    lengths = [(1, 1 + 7 * row % 60) for row in range(few)] + [(1, length) for length in longer]
    case = make_case(Geometry(2, 1, 16), lengths)
    assert relative_error(attend(ops, case), case.truth()) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_chunked_prefill_equals_one_shot(ops: Ops, chunk: int) -> None:
    tokens = 8 if chunk == 1 else 60
    whole = make_case(Geometry(), [(tokens, tokens + 15)])
    q = whole.rows[0][0]
    pieces = []
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        rows = [(end - start, 15 + end)]
        layout = replace(
            whole.layout,
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lens=torch.tensor([15 + end], dtype=torch.int32),
            num_decodes=int(rows[0][0] == 1),
            max_context_len=15 + end,
        )
        pieces.append(attend(ops, replace(whole, q=q[start:end], layout=layout)))
    assert relative_error(torch.cat(pieces), attend(ops, whole).double()) < 1e-6


def test_a_row_alone_equals_the_row_in_a_batch(ops: Ops) -> None:
    case = make_case(Geometry(), BATCHES["mixed"])
    together = attend(ops, case)
    starts = case.layout.query_starts.tolist()
    for row, (new, context) in enumerate(BATCHES["mixed"]):
        tokens = slice(starts[row], starts[row + 1])
        alone = replace(
            case.layout,
            query_starts=torch.tensor([0, new], dtype=torch.int32),
            context_lens=case.layout.context_lens[row : row + 1],
            block_tables=case.layout.block_tables[row : row + 1],
            num_decodes=int(row < case.layout.num_decodes),
            max_context_len=context,
        )
        got = attend(ops, replace(case, q=case.q[tokens], layout=alone))
        assert relative_error(got, together[tokens].double()) < 1e-6
        if ops == torch_ops():
            assert torch.equal(got, together[tokens])


def test_rows_may_share_blocks(ops: Ops) -> None:
    case = make_case(Geometry(), [(1, 33), (1, 33), (4, 33)])
    tables = case.layout.block_tables[2:].repeat(3, 1)
    shared = replace(case, layout=replace(case.layout, block_tables=tables))
    keys_and_values = case.rows[2][1:]
    rows = tuple((q, *keys_and_values) for q, _, _ in case.rows)
    assert relative_error(attend(ops, shared), replace(case, rows=rows).truth()) < 1e-5


def test_the_poison_would_show(ops: Ops) -> None:
    """Read one more token of context (positive control), which is in an unwritten slot."""
    case = make_case(Geometry(), [(1, 20), (5, 20)])
    assert attend(ops, case).isfinite().all()
    longer = replace(case.layout, context_lens=case.layout.context_lens + 1)
    got = attend(ops, replace(case, layout=longer))
    assert got[0].isnan().all()
    assert got[-1].isnan().all()


def test_an_empty_batch_gives_nothing(ops: Ops) -> None:
    case = make_case(Geometry(), [(1, 1)])
    layout = replace(
        case.layout,
        query_starts=torch.zeros(1, dtype=torch.int32),
        context_lens=case.layout.context_lens[:0],
        block_tables=case.layout.block_tables[:0],
        num_decodes=0,
    )
    assert attend(ops, replace(case, q=case.q[:0], layout=layout)).shape == (0, 4, 32)


@pytest.mark.parametrize(
    ("geometry", "names"),
    [
        (Geometry(head_dim=14), "head dim 14"),
        (Geometry(head_dim=33), "head dim 33"),
        (Geometry(head_dim=528), "head dim 528"),
        (Geometry(block_size=8), "block size 8"),
        (Geometry(block_size=24), "block size 24"),
        (Geometry(q_heads=3, kv_heads=2), "3 query heads over 2"),
        (Geometry(q_heads=17, kv_heads=1), "17 query heads over 1"),
    ],
    ids=str,
)
def test_refuses_what_it_cannot_compute(ops: Ops, geometry: Geometry, names: str) -> None:
    g = geometry
    case = make_case(Geometry(), [(1, 1)])
    kv = torch.zeros(4, 2, g.kv_heads, g.block_size, g.head_dim)
    q = torch.zeros(1, g.q_heads, g.head_dim)
    with pytest.raises(UnsupportedShape, match=names):
        ops.paged_attention(q, kv, case.layout, AttentionVariant(1.0), None)


def test_the_reference_serves_bf16_with_float32_inside() -> None:
    case = make_case(Geometry(dtype=torch.bfloat16), BATCHES["mixed"])
    got = attend(torch_ops(), case)
    assert got.dtype == torch.bfloat16
    rounded_once = case.truth().to(torch.bfloat16)
    assert relative_error(got, rounded_once.double()) < 1e-4
    assert relative_error(got, case.truth()) < 3e-3
