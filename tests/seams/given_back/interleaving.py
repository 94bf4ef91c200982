"""Users of a resource that come, leave, are cancelled and time out at random, in one event loop.

Time is virtual and moves only in a few step sizes. Waits that began together therefore time out in
the same iteration, in which other waits are granted, cancelled and released. One seed gives one
order. At the end all users leave, and everything must be available again.

The resource itself is given by each test (`Resource`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

from tests.doubles.virtual_time import run_virtually

WAIT_S = 4.0  # time limit of a resource's own waits, if it has a limit
DELAYS = (1.0, WAIT_S, WAIT_S)  # possible seconds until the next event
ACTS = 24  # number of actions before all users must leave
MOST_USERS = 24
SETTLING = 200  # maximum number of time steps until all users have left


class Resource:
    """An interface to a resource that is taken and given back within one event loop."""

    # errors that a user may get instead of the resource
    refusals: tuple[type[Exception], ...] = ()

    def use(self, random: Random) -> AbstractAsyncContextManager[object]:
        """Take some of the resource while the context is open."""
        raise NotImplementedError

    def stir(self, random: Random) -> None:
        """Cause an event that users wait for, or that disturbs them."""

    def settle(self) -> None:
        """Cause the events that users still wait for; called until all have left."""

    def check(self) -> None:
        """Check properties that always hold."""

    def left(self) -> object:
        """Return everything that users hold or await now; falsy if that is nothing."""
        raise NotImplementedError

    async def use_all(self) -> None:
        """Take all of the resource as the only user, and give it back."""
        raise NotImplementedError


class NotGivenBack(AssertionError):
    """The error of a resource that is lost, doubled, or hangs."""


class User:
    """A user who takes a resource and gives it back."""

    def __init__(self, resource: Resource, random: Random) -> None:
        self.may_go = asyncio.Event()
        self.is_inside = self.was_cancelled = False
        self.task = asyncio.create_task(self._use(resource, random))

    def cancel(self) -> None:
        """Cancel the user, perhaps again."""
        self.was_cancelled |= self.task.cancel()

    async def _use(self, resource: Resource, random: Random) -> None:
        async with resource.use(random):
            self.is_inside = True
            await self.may_go.wait()


class Game:
    """One random run of users, within one event loop."""

    def __init__(self, resource: Resource, random: Random) -> None:
        self.ends = Counter[str]()
        self._resource = resource
        self._random = random
        self._crowd = random.choice((2, 4, 8))  # number of arrivals for each end
        self._users: list[User] = []
        self._failures: list[str] = []

    async def run(self, rounds: int) -> None:
        """Repeat: let events happen, let all users leave, and check that everything is back."""
        asyncio.get_running_loop().set_exception_handler(self._note_failure)
        for _ in range(rounds):
            for _ in range(ACTS):
                self._at_some_time(self._random.choice(self._possible()))
                await self._some_turns()
                self._resource.check()
            self._end_most_together()
            await self._settle()
            self._assert_all_is_back()
            async with asyncio.timeout(SETTLING * WAIT_S):
                await self._resource.use_all()
            self._assert_all_is_back()
            self._resource.check()

    def _possible(self) -> list[Callable[[], object]]:
        running = [user for user in self._users if not user.task.done()]
        begin, stir = [self._begin] * self._crowd, [lambda: self._resource.stir(self._random)] * 2
        if not running:
            return [*begin, *stir]
        user = self._random.choice(running)
        few = begin if len(running) < MOST_USERS else []
        return [*few, *stir, user.cancel, user.cancel, user.may_go.set, user.may_go.set]

    def _at_some_time(self, act: Callable[[], object]) -> None:
        """Call `act` now, in the next iteration of the loop, or when some waits time out."""
        loop = asyncio.get_running_loop()
        match self._random.randrange(4):
            case 0:
                loop.call_soon(act)
            case 1:
                loop.call_later(self._random.choice(DELAYS), act)
            case _:
                act()

    def _end_most_together(self) -> None:
        """End all uses and most waits in one iteration, so that few users can wake the others."""
        for user in self._users:
            ends = (user.may_go.set, user.may_go.set) if user.is_inside else (user.cancel, bool)
            self._random.choice((*ends, user.cancel))()

    async def _some_turns(self) -> None:
        """Wait for one of `DELAYS` or for up to three iterations of the loop, or do not wait."""
        match self._random.randrange(6):
            case 0:
                await asyncio.sleep(self._random.choice(DELAYS))
            case 1 | 2:
                for _ in range(self._random.randrange(4)):
                    await asyncio.sleep(0)

    def _begin(self) -> None:
        self._users.append(User(self._resource, self._random))

    async def _settle(self) -> None:
        await asyncio.sleep(max(DELAYS))  # long enough for all expected events
        for _ in range(SETTLING):
            for user in self._users:
                user.may_go.set()
            self._resource.settle()
            await asyncio.sleep(0.5)
            if all(user.task.done() for user in self._users) and not self._resource.left():
                return

    def _assert_all_is_back(self) -> None:
        users, self._users = self._users, []
        for user in users:
            self._note_end(user)
        left = self._resource.left()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if left or tasks or self._failures:
            raise NotGivenBack(f"left: {left}; tasks: {tasks}; failures: {self._failures}")

    def _note_end(self, user: User) -> None:
        if not user.task.done():
            raise NotGivenBack(f"waits for ever: {user.task}")
        if user.task.cancelled() is not user.was_cancelled:
            raise NotGivenBack(f"a cancellation is lost, or was nobody's: {user.task}")
        if user.task.cancelled():
            end = "cancelled inside" if user.is_inside else "cancelled while waiting"
        elif (error := user.task.exception()) is None:
            end = "served"
        elif isinstance(error, self._resource.refusals):
            end = type(error).__name__
        else:
            raise NotGivenBack(f"ended with {error!r}") from error
        self.ends[end] += 1

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(f"{context.get('message')}: {context.get('exception')!r}")


def play(make: Callable[[Random], Resource], seed: int, rounds: int = 4) -> Counter[str]:
    """Run users of a new resource; return how they ended.

    Raises NotGivenBack, which names the seed.

    `make` is called within the loop.
    """
    random, ends = Random(seed), Counter[str]()

    async def main() -> None:
        game = Game(make(random), random)
        await game.run(rounds)
        ends.update(game.ends)

    try:
        run_virtually(main())
    except (Exception, asyncio.CancelledError) as error:
        error.add_note(f"seed {seed}")
        raise
    return ends
