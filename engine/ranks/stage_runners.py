"""The runners of the earlier stages of a pipeline, and of the last stage on a CPU.

    earlier stage    computes its layers of a step, and samples nothing
    last stage       on a CPU: computes a step only when its result is collected, or before copies

Rank 0 launches several steps ahead, of different sequences, so that each stage has a step to
compute. A GPU queues the steps. On a CPU, a launch computes the step, and would have to wait for
the earlier stages. On a CPU, rank 0 therefore defers its launch, and first sends the next step to
the other stages:

    rank 0         | send n | send n+1 | compute n | settle n | send n+2 | compute n+1 | ...
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
    """A runner of a stage before the last. Implements `Runner`. Its `Forward` samples nothing."""

    own: Runner
    device: torch.device

    def launch(self, step: Step) -> Launched:
        """Launch this stage's layers of a step, and the sending to the next stage."""
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
        """Defer a launch. It will run after all launches that were deferred before it."""
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
    """Return `own`, or a runner that defers its launches if they would wait for other stages."""
    pipe = groups.pipe
    return own if pipe is None or pipe.is_queued else DeferringRunner(own)
