"""The gateway's end of the link.

Knows: request ids, events, connection state. Does not know: HTTP, tenants or prompts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from engine.messages import EngineStats, Finished, Generate, Tokens, Welcome


class Engine(Protocol):
    """What the gateway may ask of an engine; `tests/doubles/fake_engine.py` implements it too."""

    @property
    def welcome(self) -> Welcome | None:
        """What the connected engine is; None while none is connected."""
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield `Tokens` as they come, then one `Finished`.

        Raises a subclass of `EngineError` in place of the rest when the request failed.
        Closing the generator early cancels the request in the engine.
        """
        ...

    async def stats(self) -> EngineStats:
        """The engine's counters; raises EngineUnavailable while none is connected."""
        ...

    async def flush(self, *, flow: str | None = None, namespace: bytes | None = None) -> int:
        """Forget cached prefixes of a flow, a namespace, or all; returns the blocks forgotten."""
        ...
