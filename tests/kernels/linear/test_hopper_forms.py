"""How products are cut among programs: shapes of 8B and 70B models, at every number of rows."""

from __future__ import annotations

import pytest

from kernels.linear.hopper_forms import MAX_FP8_ROWS, PROCESSORS, Form, form_of, fp8_form

QKV, OUTPUT, DOWN, GATE_UP = (6144, 4096), (4096, 4096), (4096, 14_336), (28_672, 4096)
LARGE = [(10_240, 8192), (8192, 8192), (8192, 28_672), (57_344, 8192)]
SHARED_BYTES, REGISTERS = 227 * 1024, 65_536  # of a multiprocessor


def form(rows: int, shape: tuple[int, int], *, by_block: bool = False) -> Form:
    features, width = shape
    in_parts = shape not in (GATE_UP, LARGE[-1])
    made = fp8_form(rows, features, width // 128, by_block=by_block, in_parts=in_parts)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("shape", "shares"), [(QKV, 2), (OUTPUT, 4), (DOWN, 4), (GATE_UP, 1), ((128, 64), 1)]
)
def test_of_16_bits_shares_fill_the_device_and_each_has_tiles(
    shape: tuple[int, int], shares: int
) -> None:
    assert form_of(8, shape[0], shape[1] // 64, in_parts=True).shares == shares


@pytest.mark.parametrize(
    ("rows", "shape", "wanted"),
    [
        (3, OUTPUT, Form(8, 4, 1)),
        (128, OUTPUT, Form(128, 4, 1)),
        (129, DOWN, Form(128, 2, 1)),
        (256, QKV, Form(128, 1, 1)),
        (64, GATE_UP, Form(64, 1, 2)),
        (65, GATE_UP, Form(128, 1, 1)),
        (256, GATE_UP, Form(256, 1, 1)),
    ],
)
def test_the_forms_of_an_8b(rows: int, shape: tuple[int, int], wanted: Form) -> None:
    assert form(rows, shape) == wanted


@pytest.mark.parametrize("by_block", [False, True])
@pytest.mark.parametrize("shape", [QKV, OUTPUT, DOWN, GATE_UP, *LARGE, (1040, 512)], ids=str)
def test_what_a_multiprocessor_has_is_enough(shape: tuple[int, int], by_block: bool) -> None:
    for rows in range(1, MAX_FP8_ROWS + 1):
        made = form(rows, shape, by_block=by_block)
        tiles = made.stages * (128 + made.rows) * 128
        assert made.stages >= 4
        assert made.resident * tiles <= SHARED_BYTES
        assert made.resident * 12 * 32 * made.registers[0] <= REGISTERS
        assert made.rows <= (128 if by_block else 256)
        assert 4 * made.shares * rows * shape[0] <= 8 << 20 or made.shares == 1
        assert made.shares == 1 or made.programs(rows, shape[0]) <= PROCESSORS


def test_a_form_changes_only_at_powers_of_two() -> None:
    for shape in (QKV, OUTPUT, DOWN, GATE_UP):
        forms = [form(rows, shape) for rows in range(1, MAX_FP8_ROWS + 1)]
        changes = {rows for rows in range(1, MAX_FP8_ROWS) if forms[rows] != forms[rows - 1]}
        assert changes <= {8, 16, 32, 64, 128}


def test_without_parts_a_product_of_few_strips_takes_more_passes_or_is_the_librarys() -> None:
    def whole(rows: int) -> Form | None:
        return fp8_form(rows, *(4096, 32), by_block=False, in_parts=False)

    assert whole(128) == Form(64, 1, 1)
    assert whole(129) is None
    assert fp8_form(129, *(28_672, 32), by_block=False, in_parts=False) is not None


def test_many_rows_are_the_librarys() -> None:
    assert fp8_form(MAX_FP8_ROWS, 4096, 32, by_block=False, in_parts=True) is not None
    assert fp8_form(MAX_FP8_ROWS + 1, 4096, 32, by_block=False, in_parts=True) is None
    assert fp8_form(0, 4096, 32, by_block=False, in_parts=True) is None
