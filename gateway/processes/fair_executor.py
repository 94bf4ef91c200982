"""The execution of work that would hold up the event loop, shared fairly by tenants.

    small, and the tenant has loop time left --> at once, on the event loop; its time is measured
    small otherwise, or medium, or small that turns out larger --> threads, tenants in turn
    large --> separate threads, at a lower priority

Work is a generator. At every `yield` the next tenant gets the thread, if one waits. Tenants take
turns, and the work of one tenant is done in order of arrival. A small prompt never waits for a
large prompt. A single event loop calls the executor and decides which tenant is next.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

from gateway.errors import TooManyRequests, shutting_down

T = TypeVar("T")

# A step of work takes milliseconds. Each `yield` may give the next step's size. The default is the
# request's size. The generator returns the result.
Steps = Generator[Any, None, T]

# maximum size of work that may run on the event loop, in units of one tokenised character
INLINE_SIZE = 4096
LARGE = 1 << 16  # minimum size of large work, in units of one tokenised character
_MAX_WAITING = 1024
_NICENESS = 10  # niceness of threads for large work, above the process's own niceness
_NICEST = 19
# The seconds of the event loop that a tenant may use at once, and the seconds by which this
# allowance refills per second.
_TURN_S = 0.01
_SHARE = 0.25


def in_one_step(make: Callable[[], T]) -> Steps[T]:
    """Return the work of calling `make`, in a single step."""
    yield from ()
    return make()


class FairExecutor:
    """An executor that runs work at once or in threads, tenants in turn."""

    def __init__(self, threads: int, loop_time: LoopTime | None = None) -> None:
        self._loop_time = LoopTime() if loop_time is None else loop_time
        self._small = _Lane(ThreadPoolExecutor(threads, "small"), threads)
        many = max(1, threads // 2)
        self._large = _Lane(ThreadPoolExecutor(many, "large", initializer=_step_back), many)

    async def run(self, tenant_id: str, work: Steps[T], size: int, *, may_refuse: bool = True) -> T:
        """Run `work`, which takes as long as tokenising `size` characters.

        Raises TooManyRequests if too much work of this tenant waits already, unless `may_refuse` is
        false. Raises Unavailable once the executor is closed.
        """
        left = self._loop_time.spend(tenant_id, work) if size <= INLINE_SIZE else size
        if isinstance(left, Done):
            return left.value
        lane = self._large if left > LARGE else self._small
        return await lane.run(tenant_id, work, may_refuse=may_refuse)

    def close(self) -> None:
        """End the threads after their current steps. Unfinished work fails."""
        self._small.close()
        self._large.close()


class LoopTime:
    """The event-loop time that each tenant may still take.

    The time is measured, so no caller must predict it. Work may take longer than its tenant's
    allowance. The tenant's next work is then done in threads until the allowance has refilled.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        # times at which each tenant's allowance is full again; the tenant that has not used the
        # event loop for the longest time is first
        self._whole_at: dict[str, float] = {}

    def spend(self, tenant_id: str, work: Steps[T]) -> Done[T] | int:
        """Run small steps of `work` while its tenant has time left.

        Returns the result, or the next step's size.
        """
        began = now = self._now()
        whole_at = self._whole_at.get(tenant_id, now)
        end = now + _TURN_S - max(whole_at - now, 0.0) * _SHARE
        done: Done[T] | int = 0
        try:
            while not isinstance(done, Done) and done <= INLINE_SIZE and now < end:
                done = _step(work)
                now = self._now()
        finally:
            self._take(tenant_id, began, self._now())
        return done

    def _take(self, tenant_id: str, began: float, now: float) -> None:
        whole_at = max(self._whole_at.pop(tenant_id, began), began)
        self._whole_at[tenant_id] = whole_at + (now - began) / _SHARE
        oldest = next(iter(self._whole_at))
        if self._whole_at[oldest] <= now:
            del self._whole_at[oldest]


@dataclass(eq=False, slots=True)
class _Job:
    tenant_id: str
    work: Steps[Any]
    result: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class _Lane:
    def __init__(self, pool: Executor, threads: int) -> None:
        self.pool = pool
        self._free = threads
        self._is_over = False
        # waiting jobs by tenant, in the order of the tenants' turns
        self._waiting: dict[str, deque[_Job]] = {}

    async def run(self, tenant_id: str, work: Steps[T], *, may_refuse: bool = True) -> T:
        if self._is_over:
            raise shutting_down()
        job = _Job(tenant_id, work)
        queue = self._waiting.setdefault(tenant_id, deque())
        if may_refuse and len(queue) >= _MAX_WAITING:
            raise TooManyRequests("too many prompts of this tenant wait", retry_after_s=1.0)
        queue.append(job)
        self._begin_steps()
        try:
            result: T = await job.result
            return result
        except asyncio.CancelledError:
            self._leave(job)
            raise

    def close(self) -> None:
        self._is_over = True
        waiting, self._waiting = self._waiting, {}
        for job in chain.from_iterable(waiting.values()):
            if not job.result.done():
                job.result.set_exception(shutting_down())
        self.pool.shutdown()

    def _begin_steps(self) -> None:
        while self._free and self._waiting:
            tenant_id = next(iter(self._waiting))
            queue = self._waiting.pop(tenant_id)
            job = queue.popleft()
            if queue:
                # the tenant's next turn comes after the other tenants' turns
                self._waiting[tenant_id] = queue
            self._free -= 1
            steps = asyncio.get_running_loop().run_in_executor(self.pool, self._steps, job)
            steps.add_done_callback(partial(self._end_steps, job))

    def _steps(self, job: _Job) -> Done[Any] | None:
        """Run steps of a job in a thread until another job waits; return None if steps are left.

        Returning to the event loop between two steps would often take longer than a step.
        """
        while True:
            done = _step(job.work)
            if isinstance(done, Done):
                return done
            if self._waiting or self._is_over or job.result.done():
                return None
            time.sleep(0)  # lets the event loop go first, if it waits for the interpreter

    def _end_steps(self, job: _Job, steps: asyncio.Future[Done[Any] | None]) -> None:
        """Finish a job's run of steps. A cancelled job has held its thread until now."""
        self._free += 1
        error = None if steps.cancelled() else steps.exception()
        if job.result.done() or steps.cancelled():
            pass
        elif error is not None:
            job.result.set_exception(error)
        elif (done := steps.result()) is not None:
            job.result.set_result(done.value)
        elif self._is_over:
            job.result.set_exception(shutting_down())
        else:  # the job continues before its tenant's other jobs
            self._waiting.setdefault(job.tenant_id, deque()).appendleft(job)
        if not self._is_over:
            self._begin_steps()

    def _leave(self, job: _Job) -> None:
        queue = self._waiting.get(job.tenant_id, deque())
        if job in queue:
            queue.remove(job)
            if not queue:
                del self._waiting[job.tenant_id]


class Done(Generic[T]):
    """The result of finished work."""

    def __init__(self, value: T) -> None:
        self.value = value


def _step_back() -> None:
    """Lower this thread's priority below other threads of the machine."""
    if sys.platform == "linux":  # other systems have no priorities of threads
        thread = threading.get_native_id()
        # users may raise niceness, but not lower it
        nicer = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(nicer, _NICEST))


def _step(work: Steps[T]) -> Done[T] | int:
    try:
        return next(work) or 0
    except StopIteration as end:
        return Done(end.value)


def at_once(work: Steps[T]) -> T:
    """Run all steps of `work` in this thread."""
    while True:
        done = _step(work)
        if isinstance(done, Done):
            return done.value
