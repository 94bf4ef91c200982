"""How many examples a property has: the profile's, or a multiple where one costs next to nothing.

`make test` has the same few each time, `make test-zoo` many others (`--hypothesis-profile=long`).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(times: int, **other: Any) -> settings:
    """Settings of a property with so many times as many examples as others have."""
    return settings(max_examples=times * settings().max_examples, **other)
