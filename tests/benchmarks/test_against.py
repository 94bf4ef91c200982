"""Two checkouts benchmarked in turns: the compared numbers, and the differences that count as
losses.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.against import by_turns, compared, is_rate, one_sided
from benchmarks.everything import run_by_turns


def test_who_comes_first_changes_each_round() -> None:
    order = list[bool]()

    def run(is_this: bool) -> list[dict[str, object]]:
        order.append(is_this)
        return [{"name": "a", "ms": 1.0}]

    this, other = by_turns(3, run)
    assert order == [True, False, False, True, True, False]
    assert (len(this), len(other)) == (3, 3)


@pytest.mark.parametrize(
    ("name", "this", "other", "ratio"),
    [("p50_ms", 4.0, 5.0, 1.25), ("tokens_per_s", 80.0, 100.0, 0.8), ("us", 0.0, 0.0, 1.0)],
)
def test_a_ratio_above_1_is_better_whichever_way_a_number_goes(
    name: str, this: float, other: float, ratio: float
) -> None:
    (found,) = compared([[{"name": "a", name: this}]], [[{"name": "a", name: other}]])
    assert found.ratio == pytest.approx(ratio)
    assert found.is_lost == (ratio < 1)


def test_medians_of_equal_measurements_are_compared_with_their_spread() -> None:
    this = [[{"name": "step", "rows": 8, "ms": value}] for value in (10.0, 11.0, 30.0)]
    other = [[{"name": "step", "rows": 8, "ms": value}] for value in (11.0, 10.9, 11.1)]
    (found,) = compared(this, other)
    assert (found.key, found.this, found.other) == (("step", "8", "ms"), 11.0, 11.0)
    assert found.spread == pytest.approx(20 / 11)
    assert not found.is_lost


@pytest.mark.parametrize(("this", "is_lost"), [((1.2, 1.1, 1.3), True), ((1.2, 1.0, 1.9), False)])
def test_a_loss_that_may_be_chance_is_unclear(this: tuple[float, ...], is_lost: bool) -> None:
    other = [[{"name": "a", "ms": value}] for value in (1.0, 0.9, 1.05)]
    (found,) = compared([[{"name": "a", "ms": value}] for value in this], other)
    assert (found.is_lost, found.is_unclear) == (is_lost, not is_lost)


def test_what_one_has_alone_is_named_and_a_word_is_no_number() -> None:
    this = [[{"name": "a", "ms": 1.0}, {"name": "b", "ms": 1.0, "device": "cpu", "rows": 3}]]
    other = [[{"name": "a", "ms": 1.0, "s": 2.0}]]
    assert [one.key for one in compared(this, other)] == [("a", "ms")]
    assert one_sided(this, other) == [("b", "cpu", "3", "ms"), ("a", "s")]
    assert is_rate("rows") is None


@pytest.mark.parametrize(("there", "status"), [(1.0, 0), (0.9, 1)])
def test_a_part_runs_in_both_checkouts_and_a_loss_is_a_failure(
    tmp_path: Path, there: float, status: int
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    script = (
        "import json, os, sys\n"
        "there = os.getcwd().endswith('other')\n"
        "print(json.dumps({'name': 'a', 'ms': float(sys.argv[1]) if there else 1.0}))"
    )
    outcomes = run_by_turns("part", [sys.executable, "-c", script, str(there)], 60, other, 2)
    names = ["part, here", "part, there", "part, there", "part, here", "part, compared"]
    assert [one.name for one in outcomes] == names
    assert outcomes[-1].exit_status == status
    assert outcomes[-1].records[0]["ratio"] == there
