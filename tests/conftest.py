"""Settings of every test run, which must be made before a package is first imported."""

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

# Without an NVIDIA device, Triton's kernels run in its interpreter. Triton reads this variable when
# a kernel is defined, and a conftest in a subfolder may import a kernel, so the variable is set
# here, at import. Plain PyTorch is not affected.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test speaks TLS, but every HTTP client reads some 150 certificates when it is made, which takes
# 20 ms. From a directory, certificates are read only when needed, and this directory has none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# `jsonschema` imports this module if it exists. The module compiles 38 grammars at import, in 1.5
# s, for address formats that no test uses.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fork test workers from this process, if several workers run the tests.

    Garbage collection is off while tests are imported and collected: that creates no garbage, and
    searching for garbage took a third of the time.
    """
    gc.disable()
    num_workers = len(session.config.getoption("tx", None) or ())
    is_all = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if num_workers and is_all and "PYTEST_XDIST_WORKER" not in os.environ:
        fork_server.start()  # the server imports in parallel with this process
        _import_tests()
        ForkedWorkers(num_workers)


def _import_tests() -> None:
    root = Path(__file__).parent
    for file in sorted(root.rglob("test_*.py")):
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        # The later collection skips modules that are not installed, and reports errors.
        with suppress(pytest.skip.Exception, ImportError, SyntaxError):
            import_module(name)
    # Otherwise each worker imports this module with its first model, in 2.3 s.
    with suppress(ImportError):
        import_module("transformers.modeling_utils")


@pytest.hookimpl(trylast=True)  # runs after deselected tests are removed
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute the tests that start servers, so that each worker begins with some of them."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        items[:] = servers_first(items, workers)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from later garbage collections.

    The little garbage among them is not collected first, since that took a second in each worker.
    Collections come after 10,000 new objects, not 700: they took up to a tenth of a worker's time.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


# Examples have no deadline: their times depend on the machine's other work.
settings.register_profile("few", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=500)
settings.load_profile("few")
