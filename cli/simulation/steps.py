"""A simulated engine: steps of prompt chunks and decodes, timed by `MachineModel`.

    step   a decode of every running request, and chunks of the oldest prompts
    jump   several steps with decodes only, until a request ends or a prompt arrives

Chunks are so small that a step with decodes takes about `max_step_s` or less. Prompts are computed
in order of arrival. All engines share one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import NamedTuple

from cli.plan.machine import MachineModel, ModelShape

_PROBED = 256
_LEAST_CHUNK = 128


class VirtualClock:
    """The simulated clock, and the queue of future events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        """Return the seconds since the trace began."""
        return self.now

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Call `act` at time `when`. Calls for one time run in the order of scheduling."""
        heappush(self._later, (when, next(self._serial), act))

    def advance(self, until: float) -> None:
        """Run all events up to time `until`."""
        while self._later and self._later[0][0] <= until:
            self.now, _, act = heappop(self._later)
            act()
        self.now = until

    def finish(self) -> None:
        """Run all events."""
        while self._later:
            self.advance(self._later[0][0])


class Gap(NamedTuple):
    """Gaps of `seconds` before each of `tokens` tokens."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class SimulatedStepBounds:
    """The limits of a step, equal to the engine's defaults on a GPU."""

    tokens: int = 8192
    max_step_s: float = 0.060
    rows: int = 256


@dataclass(slots=True, eq=False)
class Job:
    """A request: a prompt with `tokens` tokens still to compute, and its answer."""

    tokens: int
    behind: int  # number of cached tokens before the tokens to compute
    output: int
    on_first: Callable[[], None]  # function to call at the first token
    on_end: Callable[[], None]
    started_at: float | None = None


@dataclass(slots=True, eq=False)
class _Row:
    context: int
    left: int
    job: Job


@dataclass(slots=True)
class _UnderWay:
    began: float
    each: float  # seconds per step
    steps: int
    chunks: list[tuple[Job, int]] = field(default_factory=list)


class SteppedEngine:
    """A simulated engine. Callbacks of its jobs may add jobs to any engine."""

    def __init__(
        self,
        clock: VirtualClock,
        shape: ModelShape,
        machine: MachineModel,
        bounds: SimulatedStepBounds,
    ) -> None:
        self.gaps: list[Gap] = []
        self._clock = clock
        self._shape = shape
        self._machine = machine
        self._bounds = bounds
        self._prompts: deque[Job] = deque()
        self._rows: list[_Row] = []
        self._under_way: _UnderWay | None = None

    def add(self, job: Job) -> None:
        """Queue a job after earlier jobs."""
        self._prompts.append(job)
        if self._under_way is None:
            self._begin()
        elif not self._under_way.chunks:
            self._cut(self._under_way)

    def _begin(self) -> None:
        rows = self._rows
        if self._prompts and len(rows) < self._bounds.rows:
            chunks, seconds = self._chunks()
            self._start(_UnderWay(self._clock.now, seconds, 1, chunks))
        elif rows:
            steps = min(row.left for row in rows)
            self._start(_UnderWay(self._clock.now, self._decode_seconds(steps), steps))

    def _chunks(self) -> tuple[list[tuple[Job, int]], float]:
        """Choose the chunks of the first prompts for a step; return them and the step's seconds."""
        seconds = self._decode_seconds(1) if self._rows else 0.0
        room = self._bounds.tokens - len(self._rows)
        slots, prefill, chunks = self._bounds.rows - len(self._rows), 0.0, list[tuple[Job, int]]()
        for job in self._prompts:
            if room <= 0 or len(chunks) >= slots:
                break
            tokens = min(job.tokens, room)
            if self._rows:
                left = self._bounds.max_step_s - seconds - prefill
                tokens = min(tokens, self._affordable(left, job, is_first=not chunks))
            if tokens <= 0:
                break
            chunks.append((job, tokens))
            prefill += self._machine.prefill_seconds(self._shape, tokens, job.behind)
            room -= tokens
        if not self._rows:
            prefill = max(prefill, self._machine.step_seconds(self._shape, 1, 0.0))
        return chunks, seconds + prefill

    def _affordable(self, seconds: float, job: Job, *, is_first: bool) -> int:
        each = self._machine.prefill_seconds(self._shape, _PROBED, job.behind) / _PROBED
        return max(int(seconds / each), _LEAST_CHUNK if is_first else 0)

    def _decode_seconds(self, steps: int) -> float:
        rows = self._rows
        context = sum(row.context for row in rows) / len(rows) + steps / 2
        return self._machine.step_seconds(self._shape, len(rows), context)

    def _start(self, under_way: _UnderWay) -> None:
        for job, _ in under_way.chunks:
            if job.started_at is None:
                job.started_at = under_way.began
        self._under_way = under_way
        end = under_way.began + under_way.each * under_way.steps
        self._clock.at(end, lambda: self._end(under_way))

    def _cut(self, jump: _UnderWay) -> None:
        done = max(1, ceil((self._clock.now - jump.began) / jump.each))
        if done < jump.steps:
            self._start(_UnderWay(jump.began, jump.each, done))

    def _end(self, under_way: _UnderWay) -> None:
        if under_way is not self._under_way:
            return  # a new job has cut the run short, so this call is obsolete
        self._under_way = None
        over = self._decoded(under_way)
        begun = self._computed(under_way.chunks)
        self._begin()
        for job in begun:
            job.on_first()
        for job in over:
            job.on_end()

    def _decoded(self, under_way: _UnderWay) -> list[Job]:
        """Count the tokens generated for every row, and return the jobs that have ended."""
        rows, steps = self._rows, under_way.steps
        if rows:
            self.gaps.append(Gap(under_way.each, len(rows) * steps))
        for row in rows:
            row.context += steps
            row.left -= steps
        self._rows = [row for row in rows if row.left > 0]
        return [row.job for row in rows if row.left <= 0]

    def _computed(self, chunks: list[tuple[Job, int]]) -> list[Job]:
        for job, tokens in chunks:
            job.tokens -= tokens
            job.behind += tokens
        begun = [job for job, _ in chunks if job.tokens <= 0]
        for job in begun:
            self._prompts.remove(job)
            if job.output > 1:
                self._rows.append(_Row(job.behind + 1, job.output - 1, job))
        return begun


def gap_at(gaps: list[Gap], percent: float) -> float:
    """Return a percentile of the gaps between all tokens, in seconds, or 0 if there are none."""
    total, seen = sum(one.tokens for one in gaps), 0
    for one in sorted(gaps):
        seen += one.tokens
        if seen >= total * percent / 100:
            return one.seconds
    return 0.0
