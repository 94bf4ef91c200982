"""The directory of a package of the zoo. A test that needs a missing package is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.zoo.fetch import place_of
from tests.zoo.sources import Package


def here(package: Package) -> Path:
    """Return the directory of the package's members. If it is missing, skip the test, or fail in
    CI.
    """
    place = place_of(package)
    if place.exists():
        return place
    told = f"the zoo has no {package.name}: `make zoo` fetches it"
    return pytest.fail(told) if os.environ.get("CI") == "true" else pytest.skip(told)
