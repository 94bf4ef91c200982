"""What every test run needs before the first import of a room."""

from __future__ import annotations

import os
import shutil

# Where there is no NVIDIA device, Triton kernels run in the interpreter. Triton reads this when
# a kernel is defined, and a conftest further in may already import one: so it is set here, at
# import. Rooms that run the plain PyTorch references never notice.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
