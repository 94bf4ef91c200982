"""The end of the step loop, for each reason, with a core that only records its calls."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from engine import process
from engine.errors import EngineError
from engine.process import DRAIN_SIGNAL, EXIT_BROKEN, EXIT_STOPPED, StopSignal, serve
from engine.ranks.collectives import RankLeft
from prefix_cache.errors import InvariantBroken


@dataclass
class ScriptedCore:
    """A core with `alive` requests, one of which ends in each step. It stops, or raises an error,
    on cue.
    """

    stop: StopSignal
    stop_at_step: int | None = None
    raise_at_step: Exception | None = None
    raise_at_report: Exception | None = None
    alive: int = 0
    is_quickly_checked: bool = True
    steps: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return self.alive == 0

    def step(self) -> None:
        self.steps += 1
        if self.raise_at_step is not None:
            raise self.raise_at_step
        if self.steps == self.stop_at_step:
            self.stop.is_set = True
        elif self.stop.is_set:
            self.alive -= 1

    def drain(self) -> None:
        self.said.append("drain")

    def spill(self, seconds: float) -> None:
        self.said.append(f"put away {seconds:g} s")

    def fail_all(self, error: EngineError) -> None:
        self.said.append(f"fail {self.alive}: {error.code}")

    def report_all(self, error: EngineError) -> None:
        self.said.append(f"report {self.alive}: {error.code}")
        if self.raise_at_report is not None:
            raise self.raise_at_report

    def check_invariants(self) -> None:
        self.said.append("check")


@pytest.fixture
def restored_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, DRAIN_SIGNAL)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_stopped_it_lets_requests_finish() -> None:
    core = ScriptedCore(StopSignal(), stop_at_step=3, alive=5)
    assert serve(core, core.stop, grace_s=60, spill_grace_s=7) == EXIT_STOPPED
    assert core.steps == 3 + 5
    assert core.said == ["drain", "fail 0: engine_unavailable", "check", "put away 7 s"]


def test_after_the_grace_the_rest_fails() -> None:
    core = ScriptedCore(StopSignal(), stop_at_step=3, alive=5)
    assert serve(core, core.stop, grace_s=0) == EXIT_STOPPED
    assert core.said == ["drain", "fail 5: engine_unavailable", "check", "put away 0 s"]


def test_asked_to_drain_it_finishes_what_it_has_whatever_the_grace() -> None:
    core = ScriptedCore(StopSignal(), stop_at_step=3, alive=5)
    core.stop.has_time = True
    assert serve(core, core.stop, grace_s=0, spill_grace_s=7) == EXIT_STOPPED
    assert core.said == ["drain", "fail 0: engine_unavailable", "check", "put away 7 s"]


class BusyOnce(ScriptedCore):
    """A core that is idle after its second step."""

    def step(self) -> None:
        super().step()
        self.alive = int(self.steps < 2)


@pytest.mark.parametrize("is_quick", [True, False])
def test_an_idle_engine_is_checked_only_if_that_is_quick(
    is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of a large tree would delay the next request, or the spill, by seconds."""
    monkeypatch.setattr(process, "CHECK_EVERY_S", 0.0)
    core = BusyOnce(StopSignal(), stop_at_step=4, alive=1, is_quickly_checked=is_quick)
    assert serve(core, core.stop, grace_s=60) == EXIT_STOPPED
    end = core.said.index("drain")
    assert core.said[:end] == core.said[end:].count("check") * ["check"] == ["check"] * is_quick


@pytest.mark.parametrize(
    "error", [InvariantBroken("books"), RuntimeError("CUDA error: misaligned address")]
)
def test_any_exception_is_logged_reported_and_ends_the_process(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    core = ScriptedCore(StopSignal(), raise_at_step=error, alive=2)
    with caplog.at_level(logging.ERROR):
        assert serve(core, core.stop, grace_s=60) == EXIT_BROKEN
    assert core.said == ["report 2: engine_died"]
    assert str(error) in caplog.text
    assert "Traceback" in caplog.text


def test_the_end_of_another_rank_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    gone = RankLeft("Connection closed by peer [10.0.0.2]:7")
    core = ScriptedCore(StopSignal(), raise_at_step=gone, alive=2)
    assert serve(core, core.stop, grace_s=60) == EXIT_BROKEN
    assert core.said == ["report 2: engine_died"]
    [record] = caplog.records
    assert record.getMessage().endswith(
        "so the engine ends: Connection closed by peer [10.0.0.2]:7"
    )
    assert record.exc_info is None


def test_an_exception_ends_the_process_even_when_nobody_can_be_told() -> None:
    core = ScriptedCore(
        StopSignal(), raise_at_step=ValueError("one"), raise_at_report=OSError("two")
    )
    assert serve(core, core.stop, grace_s=60) == EXIT_BROKEN


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_set_the_stop(number: signal.Signals) -> None:
    stop = StopSignal()
    stop.listen()
    assert not stop.is_set
    os.kill(os.getpid(), number)
    assert stop.is_set


@pytest.mark.usefixtures("restored_signals")
def test_a_drain_has_time_until_a_stop_is_asked_for() -> None:
    stop, hurried = StopSignal(), StopSignal()
    stop.listen()
    os.kill(os.getpid(), DRAIN_SIGNAL)
    os.kill(os.getpid(), DRAIN_SIGNAL)
    assert (stop.is_set, stop.has_time) == (True, True)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), DRAIN_SIGNAL)
    assert (stop.is_set, stop.has_time) == (True, False)
    hurried.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (hurried.is_set, hurried.has_time) == (True, False)
