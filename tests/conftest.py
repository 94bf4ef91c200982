"""What every test run needs before the first import of a package."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from contextlib import suppress
from fcntl import LOCK_EX, flock
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from tests.order import servers_first

# Where there is no NVIDIA device, Triton kernels run in the interpreter. Triton reads this when
# a kernel is defined, and a conftest further in may already import one: so it is set here, at
# import. Packages that run the plain PyTorch references never notice.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test speaks TLS, but every HTTP client reads some 150 certificates when it is made, which takes
# 20 ms. From a directory they are read when they are asked for, and in this one there are none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# `jsonschema` imports it if it is there, and it compiles 38 grammars at import: for 1.5 s in each
# worker, and for formats of addresses that no test has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

LIBRARIES = ("torch._dynamo", "transformers.modeling_utils", "openai", "anthropic", "fastapi")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Nothing that collecting the tests makes is garbage: looking for some took a third of it."""
    gc.disable()
    if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _import_from_own_place_on()


def _import_libraries_by_turns() -> None:
    """Import what is large in one worker after the other.

    In a new environment the first compiles it, and the others read what it has written.
    """
    with Path(__file__).open() as own:
        flock(own, LOCK_EX)
        for name in LIBRARIES:
            import_module(name)


def _import_from_own_place_on() -> None:
    """Import all tests before they are collected; each worker begins elsewhere.

    All collect them in one order, so in a new checkout all would rewrite the assertions of each
    file at the same time. So each finds what the others have written by then.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    _import_libraries_by_turns()
    root = Path(__file__).parent
    files = sorted(root.rglob("test_*.py"))
    begin = (
        len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    )
    for file in files[begin:] + files[:begin]:
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        # What is not installed is left out, and what is wrong is reported, where it is collected.
        with suppress(pytest.skip.Exception, ImportError, SyntaxError):
            import_module(name)


@pytest.hookimpl(trylast=True)  # after those are left out that are not asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of several workers begin with a part of the tests that start servers."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        items[:] = servers_first(items, workers)


def pytest_collection_finish() -> None:
    """Modules and tests stay: later garbage collections need not look at them.

    Nor is the little garbage among them looked for first, which took a second of each worker.
    """
    gc.freeze()
    gc.enable()


# How long an example takes says what else the machine does, and no test is about that.
settings.register_profile("untimed", deadline=None, max_examples=50)
settings.load_profile("untimed")
