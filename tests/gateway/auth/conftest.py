"""Fixtures: a keyring with one tenant."""

from __future__ import annotations

import pytest

from tests.gateway.auth.keyrings import Ring, a_ring


@pytest.fixture
def ring() -> Ring:
    return a_ring()
