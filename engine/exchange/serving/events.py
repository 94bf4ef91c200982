"""The events of engines that ask for blocks, as the owner thread gets them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.exchange.wire import Ask

Asker = tuple[bytes, int]
"""A connection, and the number of a fetch on it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An event: another engine asks for blocks."""

    asker: Asker
    ask: Ask


@dataclass(frozen=True, slots=True)
class Gone:
    """An event: an asker has left or is silent, and no longer reads its blocks."""

    asker: Asker
