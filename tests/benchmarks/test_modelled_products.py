"""The model of a step predicts the measured times within a tenth."""

from __future__ import annotations

import pytest

from engine.step import Step
from tests.doubles.modelled.products import ProductModel
from tests.engine.rigs.hand_driven import data_row, sequence_of

# Rows as (new tokens, context), and the step's milliseconds. The first steps were measured with
# `python -m benchmarks.engine.step` on one H200. The last ones are medians of such steps in the log
# of *multiturn* runs.
MEASURED = [
    ([(1, 1_100)] * 64, 6.9),
    ([(1, 2_030)] * 64, 8.62),
    ([(1, 1_100)] * 256, 14.9),
    ([(1, 2_030)] * 64 + [(384, 2_030)], 16.31),
    ([(1, 4_200)] * 63 + [(128, 4_224)], 14.65),
    ([(1, 1_860)] * 64, 8.42),
    ([(1, 2_510)] * 61 + [(256, 2_510)], 14.48),
    ([(1, 2_090)] * 60 + [(224, 2_090)] * 2, 17.45),
    ([(1, 1_040)] * 51 + [(352, 1_040)] * 2, 20.09),
    ([(1, 2_180)] * 56 + [(384, 2_180)] * 8, 78.5),
    ([(1, 1_025)] * 9 + [(1_023, 1_024)] * 8, 178.6),
]


def step_of(rows: list[tuple[int, int]]) -> Step:
    sequence = sequence_of([1] * 4_224, block_ids=[0])
    return Step(tuple(data_row(sequence, context - new, new) for new, context in rows))


@pytest.mark.parametrize(("rows", "ms"), MEASURED)
def test_a_step_takes_what_was_measured(rows: list[tuple[int, int]], ms: float) -> None:
    assert 1e3 * ProductModel().seconds(step_of(rows)) == pytest.approx(ms, rel=0.1)


def test_tokens_that_have_room_beside_decodes_cost_less_than_others() -> None:
    def seconds(*rows: tuple[int, int]) -> float:
        return ProductModel().seconds(step_of(list(rows)))

    decodes = [(1, 2_030)] * 64
    some = seconds(*decodes, *[(320, 2_030)] * 3) - seconds(*decodes)
    many = seconds(*decodes, *[(320, 2_030)] * 9) - seconds(*decodes)
    assert 3 * some < many


def test_keys_that_are_read_with_others_are_not_counted() -> None:
    decodes = step_of([(1, 4_000)] * 64)
    alone, together = (ProductModel(read_once=share).seconds(decodes) for share in (0.0, 0.75))
    keys = 64 * 4_000 * 28.5e-9
    assert alone - together == pytest.approx(0.75 * keys)


@pytest.mark.parametrize(("new", "is_together"), [(512, True), (513, False), (2_048, True)])
def test_not_every_room_has_decodes_that_read_together(new: int, is_together: bool) -> None:
    step = step_of([(1, 4_000)] * 64 + [(new, 4_000)])
    alone, together = (ProductModel(read_once=share).seconds(step) for share in (0.0, 0.75))
    assert (alone - together > 0.004) == is_together


def test_a_step_that_reads_together_is_in_a_room_of_its_own() -> None:
    alone, together = (
        ProductModel(read_once=share).seconds(step_of([(1, 16)] * 64 + [(320, 512)]))
        for share in (0.0, 1e-9)
    )
    assert together > 1.2 * alone  # the larger step fills a tile of 576 rows, not of 384
