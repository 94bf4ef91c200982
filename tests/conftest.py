"""Settings of every test run that must precede the first import of a package."""

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

# Where there is no NVIDIA device, Triton kernels run in the interpreter. Triton reads this when a
# kernel is defined, and a conftest in a subfolder may import one, so the variable is set here, at
# import. Plain PyTorch is not affected.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test speaks TLS, but every HTTP client reads some 150 certificates when it is made, which takes
# 20 ms. From a directory they are read only when needed, and this directory is empty.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# If this module exists, `jsonschema` imports it. It compiles 38 grammars at import, in 1.5 s, for
# address formats that no test has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fork test workers from this process, if the tests are run by several.

    Garbage collection is off while tests are imported and collected: no garbage is made, and
    searching for it took a third of the time.
    """
    gc.disable()
    num_workers = len(session.config.getoption("tx", None) or ())
    is_all = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if num_workers and is_all and "PYTEST_XDIST_WORKER" not in os.environ:
        fork_server.start()  # imports in parallel with this process
        _import_tests()
        ForkedWorkers(num_workers)


def _import_tests() -> None:
    root = Path(__file__).parent
    for file in sorted(root.rglob("test_*.py")):
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        # The collection skips modules that are not installed, and reports errors.
        with suppress(pytest.skip.Exception, ImportError, SyntaxError):
            import_module(name)
    # Otherwise each worker imports it with its first model, in 2.3 s.
    with suppress(ImportError):
        import_module("transformers.modeling_utils")


@pytest.hookimpl(trylast=True)  # runs after deselected tests are removed
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute the tests that start servers, so that each worker begins with some."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        items[:] = servers_first(items, workers)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from later garbage collections.

    The little garbage among them is not collected first, which took a second in each worker.
    """
    gc.freeze()
    gc.enable()


# No deadline for examples: their times depend on what else the machine runs.
settings.register_profile("few", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=500)
settings.load_profile("few")
