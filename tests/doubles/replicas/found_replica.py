"""A fake replica that a gateway finds and connects to."""

from __future__ import annotations

from tests.doubles.replicas.fake_replica import FakeReplica


class FoundReplica(FakeReplica):
    """A fake replica that counts how often its client was started and closed."""

    starts = closes = 0

    async def start(self) -> None:
        self.starts += 1

    async def close(self) -> None:
        self.closes += 1
