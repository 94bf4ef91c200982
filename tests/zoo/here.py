"""The directory of a package of the zoo, or the end of the test that wants it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.zoo.fetch import place_of
from tests.zoo.sources import Package


def here(package: Package) -> Path:
    """Return where the package's members lie; if absent, skip the test, but fail in CI."""
    place = place_of(package)
    if place.exists():
        return place
    told = f"the zoo has no {package.name}: `make zoo` fetches it"
    return pytest.fail(told) if os.environ.get("CI") == "true" else pytest.skip(told)
