"""Garbage collection is paused, and afterwards as it was before, even after an error."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kernels.launch.garbage import uncollected


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Enable garbage collection again after each test."""
    yield
    gc.enable()


def fail_uncollected() -> None:
    with uncollected():
        assert not gc.isenabled()
        raise KeyError


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_it_was_even_after_an_error(was_enabled: bool) -> None:
    if not was_enabled:
        gc.disable()
    with pytest.raises(KeyError):
        fail_uncollected()
    assert gc.isenabled() == was_enabled
