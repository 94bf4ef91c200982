"""A tenant's LoRA adapters, as stored with the tenant.

The tenant's requests may name an adapter as their model.

Elsewhere: how an adapter is loaded (`gateway.sharing.adapters`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.link.messages import AdapterUse

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:/\-]{0,127}$"
MOST_ADAPTERS = 64

OwnAdapters = Annotated[int, Meta(ge=0, le=MOST_ADAPTERS)]


class TenantAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a tenant's requests may name. Its blocks' namespaces depend on its digest."""

    name: str
    path: str  # the adapter's folder, below the engines' folder of adapters
    digest: str  # digest of weights, rank and scale, in hex
    rank: int
    num_bytes: int
    created_at: float
    is_own: bool = False
    # ids of the tokens that switch the adapter on; empty: the adapter is on from the first token
    invocation: tuple[int, ...] = ()

    def use(self, start: int) -> AdapterUse:
        """Return the adapter in the engine's form, switched on from position `start` on."""
        return AdapterUse(bytes.fromhex(self.digest), self.path, start)
