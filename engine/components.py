"""A record of the components of an engine's core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.adapters.adapters import Adapters
from engine.copies import TierCopies
from engine.exchange.carrying import CarriedPrefixes
from engine.exchange.exchange import Exchange
from engine.link.engine_end.socket_link import Link
from engine.link.messages import Welcome
from engine.scheduling.counters import EngineCounters
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settle import Settler
from engine.scheduling.step_times import StepTimes
from engine.sentinel.sentinel import Sentinel
from engine.sequences.intake import Intake
from engine.sequences.module_keeper import ModuleKeeper
from engine.sequences.pins import Pins
from engine.sequences.token_constraint import MaskMaker
from engine.step import Runner
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.load_or_recompute import LoadOrRecompute


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of the engine's core, built by the composition root."""

    link: Link
    intake: Intake
    scheduler: Scheduler
    settler: Settler
    runner: Runner
    masks: MaskMaker
    cache: PrefixCache
    pins: Pins
    sentinel: Sentinel
    modules: ModuleKeeper
    carried: CarriedPrefixes
    copies: TierCopies
    adapters: Adapters
    exchange: Exchange
    rates: LoadOrRecompute
    times: StepTimes
    counters: EngineCounters
    welcome: Welcome
    clock: Callable[[], float]  # returns monotonic seconds
    pause: Callable[[float], None]
    out_of_memory: type[Exception]  # raised by the runner if device memory runs out
    overlap_scheduling: bool
    stages: int
