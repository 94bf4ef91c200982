"""What every test run needs before the first import of a package."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from tests.doubles.forks import server as fork_server
from tests.forked_workers import ForkedWorkers
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

# `jsonschema` imports it if it is there, and it compiles 38 grammars at import: for 1.5 s, and for
# formats of addresses that no test has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have workers that are forked from here, if all tests are run by several.

    Nothing that importing and collecting tests makes is garbage: looking for some took a third of
    it.
    """
    gc.disable()
    num_workers = len(session.config.getoption("tx", None) or ())
    is_all = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if num_workers and is_all and "PYTEST_XDIST_WORKER" not in os.environ:
        fork_server.start()  # it imports while this process does
        _import_tests()
        ForkedWorkers(num_workers)


def _import_tests() -> None:
    root = Path(__file__).parent
    for file in sorted(root.rglob("test_*.py")):
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        # What is not installed is left out, and what is wrong is reported, where it is collected.
        with suppress(pytest.skip.Exception, ImportError, SyntaxError):
            import_module(name)
    # Each worker would import it with its first model, for 2.3 s.
    with suppress(ImportError):
        import_module("transformers.modeling_utils")


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
settings.register_profile("few", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=500)
settings.load_profile("few")
