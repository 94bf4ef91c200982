"""Turn a forked process into what it would be if it had executed `python -m MODULE`.

A forked process inherits state that an executed program does not have. That state is reset here.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

BROKEN = 1  # Python's exit status after an unhandled exception


def become(command: Sequence[str], kept: Collection[int]) -> NoReturn:
    """Run `command`, of the form `python ... -m MODULE ...`, then end with its exit status.

    The first three descriptors and `kept` stay open.
    """
    status = BROKEN
    try:
        _forget(kept)
        status = _run(command)
        finish()
    finally:
        end(status)


def end(status: int) -> NoReturn:
    """End this process, even during an exception. No code of the forked program may run later."""
    if sys.exc_info()[0] is not None:
        traceback.print_exc()
    os._exit(status)


def set_environment(environment: Mapping[str, str]) -> None:
    """Replace the whole environment."""
    os.environ.clear()
    os.environ.update(environment)


def show(words: Sequence[str]) -> None:
    """Show this command in /proc/PID/cmdline. Zero bytes fill the end of the file."""
    begin, end = map(int, Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[45:47])
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)
    if len(shown) > end - begin:
        raise ValueError(f"a command of {len(shown)} bytes, and room for {end - begin}")
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def open_descriptors() -> list[int]:
    """Return the open descriptors other than the first three."""
    names = [int(name) for name in os.listdir("/proc/self/fd")]
    return [one for one in names if one > 2 and Path(f"/proc/self/fd/{one}").is_symlink()]


def _forget(kept: Collection[int]) -> None:
    gc.freeze()  # imported objects stay shared while garbage collection skips them
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in open_descriptors():
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)
    atexit._clear()
    logging.root.handlers.clear()
    logging._handlerList.clear()  # type: ignore[attr-defined]
    # Flush logs at the end. In an executed process, the import of `logging` registers this call.
    atexit.register(logging.shutdown)
    logging.root.setLevel(logging.WARNING)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(write_through=unbuffered)


def _run(command: Sequence[str]) -> int:
    at = command.index("-m") + 1
    show(command)
    sys.orig_argv = list(command)
    sys.argv = list(command[at:])
    try:
        runpy.run_module(command[at], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return _status(ended)
    return 0


def _status(ended: SystemExit) -> int:
    if isinstance(ended.code, str):
        print(ended.code, file=sys.stderr)  # noqa: T201
        return BROKEN
    return ended.code or 0


def finish() -> None:
    """End as Python does: wait for threads, call registered functions, flush output."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
