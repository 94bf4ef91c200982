"""GEMMs are divided into programs that fill the device and fit a multiprocessor.

The shapes are those of 8B and 70B models, with every number of rows.
"""

from __future__ import annotations

import pytest

from kernels.launch.rounding import cdiv
from kernels.linear.hopper_tile_configs import (
    MAX_FP8_ROWS,
    PROCESSORS,
    TileConfig,
    fp8_config,
    plain_config,
    programs_for,
    strips_of,
)

QKV, OUTPUT, DOWN, GATE_UP = (6144, 4096), (4096, 4096), (4096, 14_336), (28_672, 4096)
LARGE = [(10_240, 8192), (8192, 8192), (8192, 28_672), (57_344, 8192)]
# the limits of a multiprocessor, in bytes and in registers
SHARED_BYTES, REGISTERS = 227 * 1024, 65_536


def config(rows: int, shape: tuple[int, int], *, by_block: bool = False) -> TileConfig | None:
    features, width = shape
    in_parts = shape not in (GATE_UP, LARGE[-1])
    return fp8_config(rows, features, width // 128, by_block=by_block, in_parts=in_parts)


@pytest.mark.parametrize(
    ("shape", "shares"), [(QKV, 2), (OUTPUT, 4), (DOWN, 4), (GATE_UP, 1), ((128, 64), 1)]
)
def test_of_16_bits_shares_fill_the_device_and_each_has_tiles(
    shape: tuple[int, int], shares: int
) -> None:
    assert plain_config(shape[0], shape[1] // 64) == TileConfig(8, shares)


@pytest.mark.parametrize(
    ("rows", "shape", "wanted"),
    [
        (3, OUTPUT, TileConfig(8, 2)),
        (4, DOWN, TileConfig(8, 4)),
        (5, DOWN, TileConfig(8, 3)),
        (32, DOWN, TileConfig(32, 3)),
        (64, QKV, TileConfig(64, 2)),
        (64, GATE_UP, TileConfig(64, 1)),
        (64, LARGE[1], TileConfig(64, 1)),
        (33, (1024, 3072), TileConfig(64, 2)),
        (65, OUTPUT, TileConfig(128, 2)),
        (128, DOWN, TileConfig(128, 3)),
        (65, GATE_UP, None),
        (65, LARGE[2], None),
        (129, DOWN, None),
        (0, DOWN, None),
    ],
)
def test_the_forms_that_were_measured_to_be_best(
    rows: int, shape: tuple[int, int], wanted: TileConfig | None
) -> None:
    assert config(rows, shape) == wanted


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("shape", [QKV, OUTPUT, DOWN, GATE_UP, *LARGE, (1040, 512)], ids=str)
def test_what_a_multiprocessor_has_is_enough(shape: tuple[int, int], by_block: bool) -> None:
    for rows in range(1, MAX_FP8_ROWS + 1):
        made = config(rows, shape, by_block=by_block)
        if made is None:
            assert rows > 64
            continue
        assert made.stages >= 6
        assert made.stages * (128 + made.rows) * 128 <= SHARED_BYTES
        assert 12 * 32 * made.registers(by_block=by_block)[0] <= REGISTERS
        programs = strips_of(shape[0]) * cdiv(rows, made.rows) * made.shares
        assert made.shares == 1 or programs < PROCESSORS


def test_the_kernel_before_finds_room_beside_a_program() -> None:
    norm = 8 * 32 * 48  # registers of a program that norms a row of 4,096 numbers
    for rows in (8, 64, 128):
        assert 12 * 32 * TileConfig(rows, 1).registers(by_block=False)[0] + norm <= REGISTERS


def test_a_form_changes_only_at_powers_of_two() -> None:
    for shape in (QKV, OUTPUT, DOWN, GATE_UP):
        configs = [config(rows, shape) for rows in range(1, MAX_FP8_ROWS + 1)]
        changes = {rows for rows in range(1, MAX_FP8_ROWS) if configs[rows] != configs[rows - 1]}
        assert changes <= {4, 8, 16, 32, 64}


def test_without_parts_a_product_of_few_strips_takes_more_passes() -> None:
    assert fp8_config(128, *(4096, 32), by_block=False, in_parts=False) == TileConfig(64, 1)


def test_blocks_of_more_strips_take_more_passes() -> None:
    """Use our GEMM for more rows if scales are by block, since the library's GEMM needs another
    layout of scales.
    """
    assert config(65, LARGE[1], by_block=True) == TileConfig(64, 1)
    assert config(65, LARGE[1]) is None


@pytest.mark.parametrize(
    ("shape", "rows", "is_fp8", "wanted"),
    [
        (GATE_UP, 8, True, 112),
        (GATE_UP, 9, True, 224),
        (GATE_UP, 1, False, 224),
        (QKV, 1, True, 48),
        ((128_256, 4096), 1, False, 126),
        (LARGE[3], 1, False, 112),
    ],
)
def test_programs_of_many_strips_have_several(
    shape: tuple[int, int], rows: int, is_fp8: bool, wanted: int
) -> None:
    strips = strips_of(shape[0])
    assert programs_for(strips, rows, is_fp8=is_fp8) == wanted
    assert wanted <= 2 * PROCESSORS
