"""What has gone between the tiers, counted in blocks since the start.

Knows: counts. Does not know: bytes or times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.move import Tier


def _zeros() -> dict[Tier, int]:
    return dict.fromkeys(Tier, 0)


@dataclass(slots=True)
class Traffic:
    """Counts by tier. Kept by `ascent` and `descent`; read by whoever reports."""

    written: dict[Tier, int] = field(default_factory=_zeros)  # copied down into it
    loaded: dict[Tier, int] = field(default_factory=_zeros)  # copied up from it
    dropped: dict[Tier, int] = field(default_factory=_zeros)  # gone from it, and from the cache
    refused: dict[Tier, int] = field(default_factory=_zeros)  # times it did not take a run
    lost: dict[Tier, int] = field(default_factory=_zeros)  # found to be no good when read
