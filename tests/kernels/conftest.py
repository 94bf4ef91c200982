"""Every kernel test on the CPU runs twice: on the reference, and on the kernel interpreted."""

from __future__ import annotations

import os

import pytest

from kernels.ops import Ops, torch_ops, triton_ops
from tests.doubles.interpreter import prepared_once  # noqa: F401 (a fixture)


@pytest.fixture(params=["reference", "kernel"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """The ops under test, on CPU tensors."""
    if request.param == "reference":
        return torch_ops()
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on CPU tensors in the interpreter only")
    return triton_ops()
