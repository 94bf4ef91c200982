"""What an engine's core is made of, as a record.

Knows: which parts there are. Does not know: how they are built (`assembly`) or used (`core`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.copies import Copies
from engine.intake import Intake
from engine.link import Link
from engine.messages import Welcome
from engine.pins import Pins
from engine.scheduler import Scheduler
from engine.settle import Settler
from engine.stats import Meter
from engine.step import Runner
from prefix_cache.cache import PrefixCache
from prefix_cache.recompute import LoadOrRecompute


@dataclass(frozen=True, slots=True)
class Parts:
    """What the core is made of, built by the composition root."""

    link: Link
    intake: Intake
    scheduler: Scheduler
    settler: Settler
    runner: Runner
    cache: PrefixCache
    pins: Pins
    copies: Copies
    rates: LoadOrRecompute
    meter: Meter
    welcome: Welcome
    clock: Callable[[], float]  # seconds, monotonic
    pause: Callable[[float], None]  # waits for some seconds
    out_of_memory: type[Exception]  # what the runner raises when the device has no room
    steps_ahead: int  # steps that may be on their way when the next is decided
