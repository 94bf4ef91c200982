"""The model of a step gives what steps were measured to take, within a tenth."""

from __future__ import annotations

import pytest

from benchmarks.modelled_products import ProductModel
from engine.step import Row, Step
from tests.engine.hand_driven import sequence_of

# Rows by new tokens and context, and milliseconds: `python -m benchmarks.step` on one H200, but for
# the last two, which are of the log of a whole *multiturn*.
MEASURED = [
    ([(1, 1_100)] * 64, 6.9),
    ([(1, 2_030)] * 64, 8.62),
    ([(1, 1_100)] * 256, 14.9),
    ([(1, 2_030)] * 64 + [(384, 2_030)], 16.31),
    ([(1, 4_200)] * 63 + [(128, 4_224)], 14.65),
    ([(1, 2_100)] * 56 + [(384, 2_100)] * 8, 77.0),
    ([(1_024, 1_024)] * 8, 183.0),
]


def step_of(rows: list[tuple[int, int]]) -> Step:
    sequence = sequence_of([1])
    return Step(tuple(Row(sequence, context - new, new) for new, context in rows))


@pytest.mark.parametrize(("rows", "ms"), MEASURED)
def test_a_step_takes_what_was_measured(rows: list[tuple[int, int]], ms: float) -> None:
    assert 1e3 * ProductModel().seconds(step_of(rows)) == pytest.approx(ms, rel=0.1)


def test_tokens_that_have_room_beside_decodes_cost_less_than_others() -> None:
    def seconds(*rows: tuple[int, int]) -> float:
        return ProductModel().seconds(step_of(list(rows)))

    decodes = [(1, 2_030)] * 64
    few = seconds(*decodes, (320, 2_030)) - seconds(*decodes)
    many = seconds(*decodes, *[(320, 2_030)] * 10) - seconds(*decodes)
    assert 10 * few < 0.8 * many


def test_keys_that_are_read_with_others_are_not_counted() -> None:
    decodes = step_of([(1, 4_000)] * 64)
    alone, together = (ProductModel(read_once=share).seconds(decodes) for share in (0.0, 0.75))
    keys = 64 * 4_000 * 28.5e-9
    assert alone - together == pytest.approx(0.75 * keys)
