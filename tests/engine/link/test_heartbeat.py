"""An engine's heartbeat over a real socket tells a running step loop from a stuck one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import zmq

from engine.link.address import address
from engine.link.heartbeat import (
    Heartbeat,
    HeartbeatListener,
    is_alive,
)
from engine.link.tcp.curve import Socket
from tests.doubles.engine.engine_thread import EngineThread

ROOT = Path(__file__).parents[3]
LOOKS = 400  # number of health checks, reached only by a test that hangs
BEAT_S = 0.05
OFTEN_S = BEAT_S / 2


class Loop:
    """A step loop that advances when a test says so."""

    def __init__(self) -> None:
        self.turns = 0


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context: zmq.Context[Socket] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def path(socket_path: str) -> str:
    os.makedirs(os.path.dirname(socket_path), exist_ok=True)
    return socket_path


@contextmanager
def listening(context: zmq.Context[Socket], path: str) -> Iterator[HeartbeatListener]:
    with closing(HeartbeatListener(context, path)) as listener:
        yield listener


@contextmanager
def publishing(context: zmq.Context[Socket], path: str, turns: Callable[[], int]) -> Iterator[None]:
    publisher = context.socket(zmq.PUB)
    publisher.bind(address(path).heartbeat)
    with closing(Heartbeat(publisher, turns, every_s=BEAT_S)):
        yield


def look_until(listener: HeartbeatListener, condition: Callable[[HeartbeatListener], bool]) -> None:
    for _ in range(LOOKS):
        listener.look(OFTEN_S)
        if condition(listener):
            return
    raise AssertionError(f"missed {listener.missed}, stuck {listener.stuck}, {listener.turns}")


def test_a_loop_that_turns_is_neither_missed_nor_stuck(
    context: zmq.Context[Socket], path: str
) -> None:
    loop = Loop()
    with publishing(context, path, lambda: loop.turns), listening(context, path) as one:
        for turns in (0, 1, 7):
            loop.turns = turns
            look_until(one, lambda one: one.turns == loop.turns)
            assert (one.missed, one.stuck) == (0, 0)


def test_a_loop_that_stands_is_stuck_and_not_missed_until_it_turns(
    context: zmq.Context[Socket], path: str
) -> None:
    loop = Loop()
    with publishing(context, path, lambda: loop.turns), listening(context, path) as one:
        look_until(one, lambda one: one.turns == 0)
        look_until(one, lambda one: one.stuck >= 4 and one.missed == 0)
        loop.turns = 1
        look_until(one, lambda one: one.stuck == 0)


def test_a_process_that_is_gone_is_missed_until_another_one_comes(
    context: zmq.Context[Socket], path: str
) -> None:
    with listening(context, path) as one:
        look_until(one, lambda one: one.missed == 3)  # the health check finds no engine yet
        for _ in range(2):
            with publishing(context, path, lambda: 5):
                look_until(one, lambda one: one.missed == 0)
            look_until(one, lambda one: one.missed >= 3 and one.stuck >= 3)


def test_a_pause_of_the_listener_counts_once(context: zmq.Context[Socket], path: str) -> None:
    with publishing(context, path, lambda: 5), listening(context, path) as one:
        look_until(one, lambda one: one.missed == 0)
        time.sleep(6 * BEAT_S)  # holds up the listener's own process
        one.look()
        assert one.missed <= 1


def test_several_listen_to_one_engine(context: zmq.Context[Socket], path: str) -> None:
    with ExitStack() as stack:
        listeners = [stack.enter_context(listening(context, path)) for _ in range(2)]
        stack.enter_context(publishing(context, path, lambda: 5))
        for one in listeners:
            look_until(one, lambda one: one.turns == 5)


class TestIsAlive:
    def test_an_engine_whose_loop_turns(self, socket_path: str) -> None:
        with EngineThread(socket_path):
            assert is_alive(socket_path)
            command = [sys.executable, "-m", "engine.link.heartbeat", socket_path]
            assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        command.append("0.2")  # seconds until the check gives up
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 1

    def test_not_one_whose_loop_stands(self, context: zmq.Context[Socket], path: str) -> None:
        """Find an engine unhealthy whose step loop does not run: the engine hangs, or still loads
        its model.
        """
        with publishing(context, path, lambda: 0):
            assert not is_alive(path, patience_s=4 * BEAT_S)

    def test_not_one_that_is_not_there(self, path: str) -> None:
        assert not is_alive(path, patience_s=0.2)

    def test_not_a_process_that_only_listens(self, path: str) -> None:
        with ExitStack() as stack:
            for name in address(path).files:
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(str(name))
                listener.listen()
            assert not is_alive(path, patience_s=0.2)
