from __future__ import annotations

import pytest

from tests.gateway.state.contract import StoreContract
from tests.gateway.state.memory_store import MemoryStore


class TestMemoryStore(StoreContract):
    """The double has the properties too."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
