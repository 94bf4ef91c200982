"""The runners of a pipeline's stages before the last, and of a last stage on a CPU.

    earlier stage    computes its layers of a step, and samples nothing
    last stage       on a CPU: computes a step when its result is asked for, or before copies

Rank 0 launches several steps ahead, of different sequences, so each stage has a step. A GPU queues
the steps. A CPU computes a step while it is launched, and its first launch would wait for the
earlier stages. On a CPU the launch is therefore put off, and the other stages get the next step
meanwhile:

    rank 0         | tell n | tell n+1 | compute n | settle n | tell n+2 | compute n+1 | ...
    first stage       | compute n | compute n+1 .............   | compute n+2 |

A deferred step is launched when its result is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from engine.execution.runner import LaunchedWithoutOutput
from engine.ranks.groups import RankGroups
from engine.step import Bitmask, Forward, Launched, Row, Runner, Sampled, Step
from engine.transfers import record_event


@dataclass(frozen=True, slots=True)
class EarlierStageRunner:
    """A runner of a stage before the last. Implements `Runner`, and `Forward` without sampling."""

    own: Runner
    device: torch.device

    def launch(self, step: Step) -> Launched:
        """Launch this stage's layers of a step, up to the next stage's input."""
        if not step.rows:
            return self.own.launch(step)
        return self.launch_forward(step).skip()

    def launch_forward(self, step: Step) -> Forward:
        _check_known(step.rows)
        self.own.launch_forward(step)
        return self

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        """Return a step without samples, because only the last stage samples."""
        del allowed
        return self.skip()

    def skip(self) -> Launched:
        """Return a step without samples, because only the last stage samples."""
        return LaunchedWithoutOutput(record_event(self.device))


def _check_known(rows: Sequence[Row]) -> None:
    if any(row.is_pending for row in rows):
        raise RuntimeError("a token that is pending has come to a stage that never sees it")


@dataclass(slots=True)
class DeferringRunner:
    """A runner that launches steps in order, each as late as possible. Implements `Runner`."""

    own: Runner
    _put_off: deque[_Deferred] = field(default_factory=deque)

    def launch(self, step: Step) -> Launched:
        return self.put_off(partial(self.own.launch, step))

    def launch_forward(self, step: Step) -> Forward:
        return _DeferredForward(self, partial(self.own.launch_forward, step))

    def put_off(self, launch: Callable[[], Launched]) -> Launched:
        """Defer a launch, which runs after all launches deferred before."""
        deferred = _Deferred(self, launch)
        self._put_off.append(deferred)
        return deferred

    def catch_up(self, last: Launched | None = None) -> None:
        """Launch all deferred steps up to `last`."""
        while self._put_off:
            deferred = self._put_off.popleft()
            deferred.begin()
            if deferred is last:
                return


@dataclass(slots=True, eq=False)
class _Deferred:
    """A step that is launched when it is collected. Implements `Launched`."""

    runner: DeferringRunner
    launch: Callable[[], Launched]
    launched: Launched | None = None

    def begin(self) -> None:
        self.launched = self.launch()

    def collect(self) -> list[Sampled]:
        if self.launched is None:
            self.runner.catch_up(self)
        assert self.launched is not None, "it was put off"
        return self.launched.collect()


@dataclass(frozen=True, slots=True)
class _DeferredForward:
    """A step whose forward pass and sampling are deferred. Implements `Forward`."""

    runner: DeferringRunner
    forward: Callable[[], Forward]

    def sample(self, allowed: Sequence[Bitmask | None]) -> Launched:
        kept = [None if mask is None else mask.copy() for mask in allowed]
        return self.runner.put_off(lambda: self.forward().sample(kept))

    def skip(self) -> Launched:
        return self.runner.put_off(lambda: self.forward().skip())


def of_rank_0(own: Runner, groups: RankGroups) -> Runner:
    """Return rank 0's own runner, which defers launches instead of waiting for an earlier stage."""
    pipe = groups.pipe
    return own if pipe is None or pipe.is_queued else DeferringRunner(own)
