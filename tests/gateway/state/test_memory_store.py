from __future__ import annotations

import pytest

from tests.gateway.state.contract import StoreContract
from tests.gateway.state.memory_store import MemoryStore


class TestMemoryStore(StoreContract):
    """The contract of stores, on the double in memory."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
