"""The number of examples of a property test, and cases that only `make test-zoo` runs.

A property has the profile's number of examples. It has a multiple of that if an example costs
almost nothing, and a fraction if the property is tested for many formats.

`make test` uses the same few examples each time, `make test-zoo` many random ones
(`--hypothesis-profile=long`).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings


def examples(times: float, **other: Any) -> settings:
    """Make the settings of a property with `times` the usual number of examples."""
    return settings(max_examples=round(times * settings().max_examples), **other)


def in_the_zoo(*cases: object) -> list[Any]:
    """Mark cases for `parametrize` that only `make test-zoo` runs. A tuple has the values of one
    case.
    """
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.zoo)
        for one in cases
    ]
