"""A start without enough memory ends with a one-line error and the exit status of a failed
start.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from engine.config import EngineConfig
from engine.models.errors import NotEnoughMemory
from engine.process import EXIT_CANNOT_START
from engine.startup.memory.enough_memory import enough_memory, warn_of_little_room

ROOT = Path(__file__).parents[4]
MIB = 1 << 20


def no_such_allocation() -> None:
    torch.empty(1 << 62, dtype=torch.uint8)


LACKS: dict[str, BaseException] = {
    "Python": MemoryError(),
    "the system": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "a thread": RuntimeError("can't start new thread"),
    "a library": RuntimeError("std::bad_alloc"),
    "the device": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
}


@pytest.mark.parametrize("error", LACKS.values(), ids=list(LACKS))
def test_each_way_to_say_it_becomes_one_error(error: BaseException) -> None:
    with pytest.raises(NotEnoughMemory, match="not enough memory") as raised, enough_memory():
        raise error
    assert "\n" not in str(raised.value)


def test_torch_says_it_as_it_is_expected_to() -> None:
    with pytest.raises(NotEnoughMemory), enough_memory():
        no_such_allocation()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "no such file"), RuntimeError("shapes differ"), KeyError("x")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, enough_memory():
        raise error
    assert raised.value is error


def test_a_cache_that_is_larger_than_the_memory_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_little_room(1)
        assert caplog.records == []
        warn_of_little_room(1 << 60)
    assert "MiB are left within" in caplog.text


def start(socket: str, address_space: int, cache_tokens: int | None = None) -> tuple[int, str]:
    """Run an engine with limited address space until it ends; return its exit status and output."""
    config = EngineConfig.of(
        model_dir=str(ROOT / "handbook" / "model"),
        socket=socket,
        device="cpu",
        cache_tokens=cache_tokens,
        num_threads=1,
    )
    settings = msgspec.json.encode(config).decode()
    done = subprocess.run(
        ["prlimit", f"--as={address_space}", sys.executable, "-m", "engine", settings],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("address_space", "cache_tokens"),
    [(300 * MIB, None), (1500 * MIB, 2_000_000)],
    ids=["torch cannot be loaded", "the pool does not fit"],
)
def test_an_engine_in_too_little_memory_says_so_in_one_line(
    socket_path: str, address_space: int, cache_tokens: int | None
) -> None:
    status, log = start(socket_path, address_space, cache_tokens)
    assert status == EXIT_CANNOT_START
    assert "Traceback" not in log
    errors = [line for line in log.splitlines() if line.startswith("ERROR")]
    assert len(errors) == 1
    assert "the engine cannot start" in errors[0]
