"""How power is read off a counter that moves a few times a second."""

from __future__ import annotations

import time

import pytest
import torch
import typer

from benchmarks.energy import Meter, Tick, main, watts


class Counter:
    """An energy counter that goes up by 7 J at every third look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return 100.0 + self.looks // 3 * 7


def test_power_is_what_came_between_the_first_tick_and_the_last() -> None:
    assert watts([Tick(2.0, 1000.0), Tick(2.1, 1070.0), Tick(2.5, 1350.0)]) == 700.0


@pytest.mark.parametrize("ticks", [[], [Tick(2.0, 1000.0)]])
def test_a_counter_that_did_not_move_twice_tells_no_power(ticks: list[Tick]) -> None:
    with pytest.raises(ValueError, match="did not move"):
        watts(ticks)


def test_a_meter_notes_a_tick_when_the_counter_has_moved() -> None:
    counter = Counter()
    meter = Meter(counter)
    with meter.running():
        while counter.looks < 10:
            time.sleep(0.001)
    assert [tick.joules for tick in meter.ticks][:3] == [107.0, 114.0, 121.0]
    assert len(meter.ticks) == counter.looks // 3
    times = [tick.at for tick in meter.ticks]
    assert times == sorted(times)


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(typer.BadParameter, match="GPU"):
        main()
