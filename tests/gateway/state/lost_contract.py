"""Properties of every kind of store after its state was lost or replaced by another.

A store's test module subclasses `LostStateContract` and provides the fixture `place`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.config import Shared
from gateway.errors import StateLost
from gateway.state.home import Home, open_home
from gateway.state.identity import WrongState
from gateway.state.records import Tenant
from tests.gateway.state.contract import a_tenant


@dataclass
class Place:
    """A location of state, and ways to lose the state: empty it, replace it by another, and put it
    back.
    """

    data_dir: Path
    shared: Shared
    empty: Callable[[], Awaitable[None]]
    exchange: Callable[[], Awaitable[None]]
    save: Callable[[], Awaitable[None]]
    restore: Callable[[], Awaitable[None]]

    @asynccontextmanager
    async def _open(self, *, new_state: bool) -> AsyncIterator[Home]:
        async with open_home(self.data_dir, self.shared, new_state=new_state) as home:
            await home.watched.check()
            if home.watched.fault is not None:
                raise WrongState(home.watched.fault)
            yield home

    def open(self, *, new_state: bool = False) -> AbstractAsyncContextManager[Home]:
        """Open the state and check it. Raises WrongState if another state was expected."""
        return self._open(new_state=new_state)


class LostStateContract:
    """The properties, one test each."""

    async def test_a_first_start_and_a_second_find_one_state(self, place: Place) -> None:
        async with place.open() as home:
            await home.store.create(a_tenant())
        marked = (place.data_dir / "state.id").read_text()
        async with place.open() as home:
            assert await home.store.every(Tenant) == [a_tenant()]
            assert home.watched.fault is None
        assert (place.data_dir / "state.id").read_text() == marked

    @pytest.mark.parametrize("how", ["empty", "exchange"])
    async def test_a_lost_one_is_no_first_start(self, place: Place, how: str) -> None:
        async with place.open() as home:
            await home.store.create(a_tenant())
        await place.save()
        await (place.empty if how == "empty" else place.exchange)()
        for _ in range(2):
            with pytest.raises(WrongState, match="--new-state"):
                async with place.open():
                    pass
        await place.restore()
        async with place.open() as home:
            assert await home.store.every(Tenant) == [a_tenant()]

    @pytest.mark.parametrize("how", ["empty", "exchange"])
    async def test_one_lost_while_it_is_open_refuses_reads_and_writes(
        self, place: Place, how: str
    ) -> None:
        async with place.open() as home:
            await home.store.create(a_tenant())
            await (place.empty if how == "empty" else place.exchange)()
            await home.watched.check()
            assert home.watched.fault is not None
            assert home.watched.fault.status == "state_missing"
            for attempt in (
                home.store.every(Tenant),
                home.store.find_by_digest(b"digest"),
                home.store.create(a_tenant("other")),
            ):
                with pytest.raises(StateLost) as refusal:
                    await attempt
                assert refusal.value.code == "state_missing"

    async def test_an_older_one_is_welcome(self, place: Place) -> None:
        async with place.open() as home:
            await home.store.create(a_tenant())
        await place.save()
        async with place.open() as home:
            await home.store.create(a_tenant("late"))
        await place.restore()
        async with place.open() as home:
            assert await home.store.every(Tenant) == [a_tenant()]

    async def test_a_directory_without_a_marker_takes_what_is_there(self, place: Place) -> None:
        async with place.open() as home:
            await home.store.create(a_tenant())
        marked = (place.data_dir / "state.id").read_text()
        (place.data_dir / "state.id").unlink()
        async with place.open() as home:
            assert await home.store.every(Tenant) == [a_tenant()]
        assert (place.data_dir / "state.id").read_text() == marked
