"""The heartbeat beside the engine's socket, over a real socket."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from engine.pulse import Echo, Pulse, pulse_path

BEAT_S = 0.02


@asynccontextmanager
async def felt_at(path: str) -> AsyncIterator[Pulse]:
    """A gateway's end, beating."""
    pulse, context = Pulse(BEAT_S), zmq.Context[zmq.Socket[bytes]]()
    watching = asyncio.create_task(pulse.watch(context, path))
    try:
        yield pulse
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        context.term()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(BEAT_S)
    raise AssertionError("it did not come to that")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "e")


@asynccontextmanager
async def felt(path: str) -> AsyncIterator[tuple[Pulse, Echo]]:
    """A gateway's end that has felt the engine's; the echo is closed by who asked for it."""
    async with felt_at(path) as pulse:
        await until(lambda: pulse.is_lost)  # nobody is there yet
        echo = Echo(path)
        await until(lambda: not pulse.is_lost)
        yield pulse, echo


async def test_an_engine_that_stops_to_echo_is_lost_until_it_echoes_again(path: str) -> None:
    async with felt(path) as (pulse, echo):
        echo.close()
        await until(lambda: pulse.is_lost)
        echo = Echo(path)
        await until(lambda: not pulse.is_lost)
        echo.close()


async def test_who_never_echoes_is_lost_but_not_at_once(path: str) -> None:
    async with felt_at(path) as pulse:
        assert not pulse.is_lost
        await until(lambda: pulse.is_lost)


async def test_one_beat_missed_is_not_enough(path: str) -> None:
    async with felt(path) as (pulse, echo):
        for _ in range(3):
            time.sleep(10 * BEAT_S)  # noqa: ASYNC251 - this very process stands still
            await asyncio.sleep(0)
            assert not pulse.is_lost
        echo.close()


async def test_another_engine_begins_anew_and_has_to_echo_as_well(path: str) -> None:
    async with felt(path) as (pulse, echo):
        echo.close()
        await until(lambda: pulse.is_lost)
        pulse.begin_anew()
        assert not pulse.is_lost
        await until(lambda: pulse.is_lost)


def test_the_socket_is_private_and_goes_with_the_engine(path: str) -> None:
    echo = Echo(path)
    assert stat.S_IMODE(os.stat(pulse_path(path)).st_mode) == 0o600
    echo.close()
    assert not os.path.exists(pulse_path(path))


async def test_several_gateways_feel_one_engine(path: str) -> None:
    async with felt_at(path) as first, felt_at(path) as second:
        await until(lambda: first.is_lost and second.is_lost)
        echo = Echo(path)
        await until(lambda: not (first.is_lost or second.is_lost))
        echo.close()
