"""The supervisor restarts and stops real processes.

Small scripts stand in for the gateway and the engine.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cli.errors import ModelRefused, ServingFailed
from cli.supervision.child import python_environment
from cli.supervision.serving_state import ChildName, ChildPatience, Policy
from cli.supervision.watch import RESTART_SIGNAL, Probed, Watch, WatchedChild
from tests.cli.scripts import CHILDREN, fake_commands, probe, quick_policy
from tests.doubles.processes import children
from tests.doubles.waiting import until

LIMIT_S = 30


@dataclass
class RecordingScreen:
    """A screen that records its lines, and may call a function when the server is ready."""

    on_announce: Callable[[], None] = lambda: None
    said: list[str] = field(default_factory=list)
    heard: list[tuple[ChildName, str]] = field(default_factory=list)
    greetings: int = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def child_says(self, name: ChildName, line: str) -> None:
        self.heard.append((name, line))

    def announce(self) -> None:
        self.greetings += 1
        self.on_announce()


def watched(
    directory: Path,
    *,
    deaths: int = 0,
    gateway: str = "",
    status: int = 7,
    policy: Policy | None = None,
) -> WatchedChild:
    return WatchedChild(
        commands=fake_commands(directory, deaths=deaths, gateway=gateway, status=status),
        probe=lambda: probe(directory),
        policy=policy or quick_policy(),
        poll_s=0.01,
        rest_s=0.01,
    )


async def watch_until_ready(to_watch: WatchedChild) -> RecordingScreen:
    """Supervise, and ask to stop as soon as the server is ready."""
    screen = RecordingScreen()
    watch = Watch(to_watch, screen)
    screen.on_announce = watch.request_stop
    await asyncio.wait_for(watch.run(), LIMIT_S)
    return screen


def starts(directory: Path, file: str = "starts") -> int:
    return len((directory / file).read_text().splitlines())


async def test_an_engine_that_dies_twice_is_up_the_third_time(tmp_path: Path) -> None:
    screen = await watch_until_ready(watched(tmp_path, deaths=2))
    assert starts(tmp_path) == 3
    assert screen.greetings == 1
    assert screen.heard.count(("engine", "no such model")) == 2
    assert sum("starting it again" in line for line in screen.said) == 2


async def test_the_gateway_stops_first(tmp_path: Path) -> None:
    await watch_until_ready(watched(tmp_path))
    assert (tmp_path / "log").read_text() == "gateway stops\nengine stops\n"


async def test_an_engine_that_always_dies_is_given_up(tmp_path: Path) -> None:
    screen = RecordingScreen()
    watch = Watch(watched(tmp_path, deaths=99), screen)
    with pytest.raises(ServingFailed, match="status 7, 3 times in a row"):
        await asyncio.wait_for(watch.run(), LIMIT_S)
    assert starts(tmp_path) == 3
    assert screen.greetings == 0
    assert screen.heard.count(("engine", "no such model")) == 3
    assert (tmp_path / "log").read_text() == "gateway stops\n"


async def test_an_engine_that_refuses_the_model_is_not_asked_again(tmp_path: Path) -> None:
    screen = RecordingScreen()
    watch = Watch(watched(tmp_path, deaths=99, status=3), screen)
    with pytest.raises(ModelRefused) as refused:
        await asyncio.wait_for(watch.run(), LIMIT_S)
    assert (refused.value.exit_code, refused.value.message) == (3, "")
    assert screen.heard.count(("engine", "no such model")) == starts(tmp_path) == 1
    assert not screen.said


@dataclass
class StoppedWhenSaid(RecordingScreen):
    """A screen that asks to stop when a given line is printed."""

    line: str = ""
    stop: Callable[[], None] = lambda: None

    def say(self, text: str) -> None:
        super().say(text)
        if text == self.line:
            self.stop()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("gateway-dies", "the gateway ended with status 7; starting it again in 0.01 s"),
        ("gateway-hangs", "ending the gateway, which does not answer"),
    ],
)
async def test_a_gateway_that_dies_or_hangs_is_started_again_beside_the_same_engine(
    tmp_path: Path, fault: str, said: str
) -> None:
    screen = StoppedWhenSaid(
        on_announce=(tmp_path / fault).touch, line="the gateway is back", stop=lambda: None
    )
    watch = Watch(watched(tmp_path), screen)
    screen.stop = watch.request_stop
    await asyncio.wait_for(watch.run(), LIMIT_S)
    assert said in screen.said
    assert (starts(tmp_path), starts(tmp_path, "gateway-starts")) == (1, 2)
    assert screen.greetings == 1
    assert (tmp_path / "log").read_text() == "gateway stops\nengine stops\n"


@pytest.mark.parametrize("rests", [True, False], ids=["rests", "the control"])
async def test_while_all_answer_nobody_is_asked_for_a_while(tmp_path: Path, rests: bool) -> None:
    asked = 0

    async def counted() -> Probed:
        nonlocal asked
        asked += 1
        return await probe(tmp_path)

    screen, greeted = RecordingScreen(), asyncio.Event()
    screen.on_announce = greeted.set
    rest_s = 10.0 * LIMIT_S if rests else 0.0
    watch = Watch(replace(watched(tmp_path), probe=counted, rest_s=rest_s), screen)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(LIMIT_S):
        await greeted.wait()
        before = asked
        if rests:
            await asyncio.sleep(0.1)
            assert asked == before
        else:
            await until(lambda: asked > before, LIMIT_S)
        watch.request_stop()
        await running


async def test_a_gateway_that_cannot_start_ends_serving(tmp_path: Path) -> None:
    with pytest.raises(ServingFailed, match="the gateway cannot start"):
        await asyncio.wait_for(
            Watch(watched(tmp_path, gateway="broken"), RecordingScreen()).run(), LIMIT_S
        )
    assert starts(tmp_path, "gateway-starts") == 1


async def test_a_gateway_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    policy = replace(quick_policy(), gateway=ChildPatience(stop_s=0.05, silent_s=30.0))
    screen = await watch_until_ready(watched(tmp_path, gateway="stubborn", policy=policy))
    assert "the gateway does not stop; ending it" in screen.said
    assert (tmp_path / "log").read_text() == "engine stops\n"


async def test_a_command_that_cannot_be_run_ends_serving(tmp_path: Path) -> None:
    to_watch = watched(tmp_path)
    commands = {**to_watch.commands, "gateway": [str(tmp_path / "no-such-program")]}
    with pytest.raises(ServingFailed, match="the gateway ended with status 1, 3 times in a row"):
        await asyncio.wait_for(
            Watch(replace(to_watch, commands=commands), RecordingScreen()).run(), LIMIT_S
        )


async def test_a_restart_drains_the_engine_and_starts_another(tmp_path: Path) -> None:
    screen = StoppedWhenSaid(line="all engines have been restarted")
    watch = Watch(watched(tmp_path), screen)
    screen.on_announce = lambda: os.kill(os.getpid(), RESTART_SIGNAL)
    screen.stop = watch.request_stop
    await asyncio.wait_for(watch.run(), LIMIT_S)
    assert (starts(tmp_path), screen.greetings) == (2, 1)
    assert (tmp_path / "log").read_text() == "engine drains\ngateway stops\nengine stops\n"


@contextmanager
def watcher(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the supervisor in its own process, which can receive signals."""
    root = CHILDREN.parents[2]
    process = subprocess.Popen(
        [sys.executable, "-P", str(CHILDREN / "watched.py"), str(directory), "0"],
        env={**python_environment(), "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            return
    raise AssertionError(f"{line!r} was never said")


def wait_gone(pidfds: list[int]) -> int:
    """Wait for the processes to end, up to a limit; return how many have ended."""
    gone = 0
    for pidfd in pidfds:
        gone += bool(select.select([pidfd], [], [], LIMIT_S)[0])
        os.close(pidfd)
    return gone


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with watcher(tmp_path) as process:
        read_until(process, "ready")
        pidfds = [os.pidfd_open(child) for child in children(process.pid)]
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
        assert wait_gone(pidfds) == 2
    assert (tmp_path / "log").read_text() == "gateway stops\nengine stops\n"


def test_children_do_not_outlive_a_killed_watcher(tmp_path: Path) -> None:
    with watcher(tmp_path) as process:
        read_until(process, "ready")
        pidfds = [os.pidfd_open(child) for child in children(process.pid)]
        process.kill()
        assert wait_gone(pidfds) == 2
    assert not (tmp_path / "log").exists(), "they had no time to stop by themselves"
