"""How many examples a property has, and which cases of a test only `make test-zoo` runs.

A property has the profile's number, or a multiple where one costs next to nothing.

`make test` has the same few each time, `make test-zoo` many others (`--hypothesis-profile=long`).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings


def examples(times: int, **other: Any) -> settings:
    """Settings of a property with so many times as many examples as others have."""
    return settings(max_examples=times * settings().max_examples, **other)


def in_the_zoo(*cases: object) -> list[Any]:
    """Cases for `parametrize` that only `make test-zoo` runs; a tuple is the values of one."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.zoo)
        for one in cases
    ]
