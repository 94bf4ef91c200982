"""What every test run needs before the first import of a package."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

from hypothesis import settings

# Where there is no NVIDIA device, Triton kernels run in the interpreter. Triton reads this when
# a kernel is defined, and a conftest further in may already import one: so it is set here, at
# import. Packages that run the plain PyTorch references never notice.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test speaks TLS, but every HTTP client reads some 150 certificates when it is made, which takes
# 20 ms. From a directory they are read when they are asked for, and in this one there are none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)


def pytest_sessionstart() -> None:
    """Nothing that collecting the tests makes is garbage: looking for some took a third of it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and tests stay: later garbage collections need not look at them.

    Nor is the little garbage among them looked for first, which took a second of each worker.
    """
    gc.freeze()
    gc.enable()


# How long an example takes says what else the machine does, and no test is about that.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
