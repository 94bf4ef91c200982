"""Fixtures: every kernel test on the CPU runs the reference and the interpreted kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import triton

from kernels.ops import Ops, torch_ops, triton_ops
from tests.doubles.kernels.interpreter import prepared_once  # noqa: F401 (a fixture)


@pytest.fixture(params=["reference", "kernel"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Return the ops under test, on CPU tensors."""
    if request.param == "reference":
        return torch_ops()
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on CPU tensors in the interpreter only")
    return triton_ops()


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Yield a list of the kernels that are compiled, or loaded from the disk, while the test
    runs.
    """
    names: list[str] = []
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_post_compile_hook = lambda **what: names.append(what["fn"].name)
        yield names
