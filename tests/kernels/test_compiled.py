"""The manual check compiles kernels for Hopper without a GPU, and reports those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernels.launch.compile_ahead import Variant
from tests.kernels.compiled import SHARED_BYTES, compiles

COUNTS = {
    ("llama, fp8 KV", "attend_split"): 3,  # has the inline assembly of decodes with an fp8 cache
    ("llama, rank 0 of 2", "collectives"): 3,
    ("llama, rank 3 of 4", "add_rms_norm"): 2,  # a one-shot and a two-shot sum
    ("gpt-oss, mxfp4", "hopper_gemm"): 1,  # a kernel in Gluon, the one that compiles fastest
}
ALL = """
import sys
from tests.kernels.compiled import main
for model, kernel in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    try:
        main([model], kernel)
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_what_the_interpreter_does_not_see_compiles() -> None:
    """Compile in one process what the interpreter cannot check, since imports take longer than
    compiling.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [word for model_and_kernel in COUNTS for word in model_and_kernel]
    done = subprocess.run(
        [sys.executable, "-c", ALL, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line.rpartition(",")[0] for line in done.stdout.splitlines()]
    assert told == [f"{model}: {count} kernels" for (model, _), count in COUNTS.items()]


class Kernel:
    """A kernel that uses `shared` bytes of shared memory; None: the compiler refuses the kernel."""

    def __init__(self, shared: int | None) -> None:
        self._shared = shared

    def preload(self, data: str) -> Any:
        if self._shared is None:
            raise RuntimeError("PassManager::run failed")
        return SimpleNamespace(metadata=SimpleNamespace(shared=self._shared))


@pytest.mark.parametrize(
    ("shared", "says"),
    [
        (None, "PassManager::run failed"),
        (SHARED_BYTES + 1, "bytes of shared memory"),
        (SHARED_BYTES, ""),
    ],
)
def test_what_does_not_compile_is_told(
    shared: int | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    variant = Variant(Kernel(shared), "kernel", "data")
    assert compiles(variant) == (not says)
    assert says in capsys.readouterr().err
