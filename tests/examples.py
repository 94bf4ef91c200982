"""The number of examples of a property test, and the cases that only `make test-zoo` runs.

A property has the profile's number of examples: a multiple if an example costs almost nothing, and
a part if the property is tested for many formats.

`make test` uses the same few each time, `make test-zoo` many others (`--hypothesis-profile=long`).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings


def examples(times: float, **other: Any) -> settings:
    """Make settings of a property with `times` as many examples as usual."""
    return settings(max_examples=round(times * settings().max_examples), **other)


def in_the_zoo(*cases: object) -> list[Any]:
    """Mark cases for `parametrize` that only `make test-zoo` runs; a tuple: one case's values."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.zoo)
        for one in cases
    ]
