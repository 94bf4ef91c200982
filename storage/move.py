"""What one copy of one block looks like, as data.

Knows: the names of the tiers and that a block has a slot number in each.
Does not know: tokens, namespaces, tenants, or how a copy is done. `prefix_cache`
returns moves; a mover in this room executes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tier(Enum):
    """A place for blocks, fastest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Move:
    """Copy the whole block in slot `source` of one tier to slot `target` of another or the same."""

    source_tier: Tier
    source: int
    target_tier: Tier
    target: int
