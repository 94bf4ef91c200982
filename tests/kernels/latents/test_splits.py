"""The latents of one query block are divided among programs so that they fill the device."""

from __future__ import annotations

import pytest
import torch

from kernels.latents.query_blocks import decode_splits, divide, heads_together, prompt_splits
from tests.kernels.cases import make_layout


@pytest.mark.parametrize(
    ("programs", "splits"),
    [
        (1, 64),  # the largest allowed number of programs
        (22, 6),  # one full wave of 132 programs
        (66, 2),
        (132, 1),
        # four waves that each take a third; one program per block would take two whole waves
        (171, 3),
        (10_000, 1),  # many waves, which are nearly full without splits
    ],
)
def test_splits_of_prompts_fill_the_last_wave(programs: int, splits: int) -> None:
    assert prompt_splits(programs, 64) == splits


@pytest.mark.parametrize(
    ("heads", "most", "together"),
    [(20, 32, 20), (128, 32, 32), (128, 64, 64), (48, 32, 24), (1, 64, 1)],
)
def test_a_program_has_as_many_heads_as_divide_all(heads: int, most: int, together: int) -> None:
    assert heads_together(heads, most) == together


def test_splits_stay_below_their_maximum() -> None:
    assert prompt_splits(1, 3) == 3
    assert decode_splits(1, 3, 4) == 3
    assert decode_splits(1, 64, 2) == 64


@pytest.mark.parametrize(
    ("programs", "each", "splits"), [(128, 4, 4), (128, 2, 2), (300, 4, 1), (1000, 4, 1)]
)
def test_decodes_have_up_to_so_many_programs_a_multiprocessor(
    programs: int, each: int, splits: int
) -> None:
    assert decode_splits(programs, 64, each) == splits


@pytest.mark.parametrize("rows", [1, 3, 128])
def test_decodes_have_a_block_each_and_no_more(rows: int) -> None:
    """A kernel finds a decode's row by its block's number. The next rows are prompts."""
    prompts = [(4, 40)] * 2
    lengths = [*[(1, 20)] * rows, *prompts]
    layout = make_layout(lengths, torch.zeros(len(lengths), 3, dtype=torch.int32), 16, rows)
    q = torch.zeros(rows, 20, 8)
    decodes = divide(q, layout, (0, rows), 64, lambda heads: 64 // heads, 1)
    assert (decodes.count, decodes.tokens, decodes.are_decodes) == (rows, 1, True)
    q = torch.zeros(sum(new for new, _ in prompts), 20, 8)
    blocks = divide(q, layout, (rows, rows + 2), 64, lambda heads: 64 // heads, 1)
    assert (blocks.count, blocks.tokens, blocks.are_decodes) == (4, 3, False)
