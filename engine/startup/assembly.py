"""The assembly of an engine's components around a runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.adapters.adapters import AdapterParts, Adapters
from engine.components import Components
from engine.copies import TierCopies
from engine.core import EngineCore
from engine.drafting.composition import choose_drafts
from engine.drafting.draft import Drafting
from engine.exchange.carrying import CarriedPrefixes
from engine.exchange.exchange import Exchange, ExchangeThreads
from engine.exchange.fetching.fetch import Patience
from engine.exchange.units import UnitMemory
from engine.link.engine_end.socket_link import Link
from engine.link.messages import Welcome
from engine.scheduling.counters import EngineCounters
from engine.scheduling.fairness.queue import FairQueue, QueueLimits
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settle import Settler
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import CPU_WEIGHTS, WEIGHTS, StepTimes
from engine.sentinel.report import Reporter
from engine.sentinel.sentinel import Sentinel
from engine.sequences.intake import Intake
from engine.sequences.module_keeper import ModuleKeeper
from engine.sequences.pins import Pins, most_pinned
from engine.sequences.sequence_cache import SequenceCache
from engine.sequences.token_constraint import (
    ConstraintOf,
    ForgetGrammars,
    MadeOnDemand,
    MaskMaker,
    nothing_kept,
    unconstrained,
)
from engine.step import Runner
from engine.step_sizes import MOST_NEW
from engine.tier_interfaces import LowerTiers
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.eviction_policy import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.hashing import Digest, xxh3_128_digest
from prefix_cache.leases.load_or_recompute import LoadOrRecompute

# The assumed seconds for which the device is idle while a step with drafts is settled. The launch
# of the next step is not included, because measured step times without overlap include it.
WAITS_S = 0.0006
MODULES_IN_QUEUE = 1 / 16  # share of the queue that prompt modules of one flow may take


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of one engine."""

    step: StepLimits
    queue: QueueLimits
    single_flight_deadline_s: float
    overlap_scheduling: bool = False  # True: a step is scheduled while the step before is computed
    # Maximum prompt tokens of a step that is padded to a captured size.
    graph_tokens: int = MOST_NEW
    drafts: bool = False
    sentinel_share: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner, with the size of its pool, its out-of-memory error and its grammars."""

    runner: Runner
    welcome: Welcome
    num_blocks: int
    out_of_memory: type[Exception]
    constraint_of: ConstraintOf = unconstrained
    forget_grammars: ForgetGrammars = nothing_kept
    masks: MaskMaker = field(default_factory=MadeOnDemand)
    adapters: AdapterParts | None = None  # None: the engine serves no adapters
    has_draft_head: bool = False
    states_in_place: bool = False  # True if there are ring buffers, which decodes write in place
    # Number of state slots on the device, including the unused slot 0; 0: no states.
    num_states: int = 0
    units: UnitMemory | None = None  # reads and writes blocks; None: no exchange


@dataclass(frozen=True, slots=True)
class CacheParts:
    """The parts of the cache: the eviction policy, the function of block keys, the lower tiers."""

    policy: EvictionPolicy = field(default_factory=LeastRecentlyUsed)
    digest: Digest = xxh3_128_digest
    lower: LowerTiers = field(default_factory=LowerTiers)


def assemble(
    loaded_runner: LoadedRunner,
    link: Link,
    limits: EngineLimits,
    cache_parts: CacheParts | None = None,
    exchange: ExchangeThreads | None = None,
    *,
    patience: Patience | None = None,
    drafting: Drafting | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """Assemble an engine that serves `link`. By default the cache is on the device only.

    Without `exchange`, the engine neither fetches blocks from other engines nor sends them.
    `patience` replaces the default time limits of fetches. `drafting` replaces the choice of drafts
    that `limits` selects.
    """
    parts, welcome = cache_parts or CacheParts(), _welcome(loaded_runner, exchange)
    times = StepTimes(limits.graph_tokens, CPU_WEIGHTS if welcome.device == "cpu" else WEIGHTS)
    counters = EngineCounters(started=clock())
    blocks = _blocks(loaded_runner, parts, limits, times, welcome)
    exchanged = _exchange(blocks, times, welcome, exchange, patience)
    if drafting is None and limits.drafts:
        drafting = _drafting(loaded_runner, limits, blocks.cache, times)
    sentinel = _sentinel(welcome, limits, blocks.cache)
    queue, step = FairQueue(limits.queue), limits.step
    scheduler = Scheduler(
        queue, blocks.sequences, step, times, counters, exchanged, clock, drafting, sentinel
    )
    components = Components(
        link=link,
        intake=_intake(loaded_runner, blocks.cache),
        scheduler=scheduler,
        settler=Settler(scheduler, counters, times, sentinel, eos_token_ids=welcome.eos_token_ids),
        runner=loaded_runner.runner,
        masks=loaded_runner.masks,
        cache=blocks.cache,
        sentinel=sentinel,
        modules=ModuleKeeper(blocks.cache, max(int(limits.queue.capacity * MODULES_IN_QUEUE), 1)),
        pins=blocks.pins,
        carried=blocks.carried,
        copies=blocks.copies,
        adapters=Adapters(loaded_runner.adapters),
        exchange=exchanged,
        rates=blocks.rates,
        times=times,
        counters=counters,
        welcome=welcome,
        clock=clock,
        pause=time.sleep,
        out_of_memory=loaded_runner.out_of_memory,
        overlap_scheduling=limits.overlap_scheduling,
        stages=step.stages,
    )
    return EngineCore(components)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The prefix cache, and the components that lease, copy, pin and exchange its blocks."""

    cache: PrefixCache
    rates: LoadOrRecompute
    copies: TierCopies
    sequences: SequenceCache
    pins: Pins
    carried: CarriedPrefixes


def _blocks(
    loaded_runner: LoadedRunner,
    parts: CacheParts,
    limits: EngineLimits,
    times: StepTimes,
    welcome: Welcome,
) -> _Blocks:
    cache = _cache(loaded_runner, parts, limits.step.max_running)
    rates = _rates(times, parts.lower, welcome.block_size)
    copies = TierCopies(cache, parts.lower.mover, parts.lower.disk, rates)
    deadline_s = limits.single_flight_deadline_s
    most = most_pinned(loaded_runner.num_blocks, cache.blocks_for(welcome.max_model_len))
    pins = Pins(cache, most)
    return _Blocks(
        cache,
        rates,
        copies,
        SequenceCache(cache, copies, rates, single_flight_deadline_s=deadline_s),
        pins,
        CarriedPrefixes(cache, pins, loaded_runner.units),
    )


def _exchange(
    blocks: _Blocks,
    times: StepTimes,
    welcome: Welcome,
    threads: ExchangeThreads | None,
    patience: Patience | None,
) -> Exchange:
    return Exchange(
        blocks.cache,
        times,
        welcome.fingerprint,
        blocks.rates.block_bytes,
        threads,
        patience,
        blocks.carried,
    )


def _welcome(loaded_runner: LoadedRunner, exchange: ExchangeThreads | None) -> Welcome:
    welcome = loaded_runner.welcome
    return msgspec.structs.replace(
        welcome,
        has_states=welcome.has_states or loaded_runner.num_states > 0,
        exchange_address=welcome.exchange_address if exchange is None else exchange.address,
    )


def _rates(times: StepTimes, lower: LowerTiers, block_size: int) -> LoadOrRecompute:
    return LoadOrRecompute(
        times,
        block_size=block_size,
        block_bytes=lower.block_bytes,
        state_blocks=lower.tiers.state_blocks,
    )


def _drafting(
    loaded_runner: LoadedRunner, limits: EngineLimits, cache: PrefixCache, times: StepTimes
) -> Drafting:
    waits_s = WAITS_S if limits.overlap_scheduling else 0.0
    return choose_drafts(
        cache.tree,
        times.decodes,
        lambda: waits_s,
        most_rows=limits.step.max_running,
        has_states=loaded_runner.num_states > 0,
        has_head=loaded_runner.has_draft_head,
    )


def _sentinel(welcome: Welcome, limits: EngineLimits, cache: PrefixCache) -> Sentinel:
    return Sentinel(
        Reporter(welcome),
        cache.is_free_for,
        share=limits.sentinel_share,
        max_running=limits.step.max_running,
        max_model_len=welcome.max_model_len,
        dtype=welcome.dtype,
    )


def _cache(loaded_runner: LoadedRunner, parts: CacheParts, max_running: int) -> PrefixCache:
    return PrefixCache(
        num_blocks=loaded_runner.num_blocks,
        block_size=loaded_runner.welcome.block_size,
        policy=parts.policy,
        digest=parts.digest,
        tiers=parts.lower.tiers,
        num_states=loaded_runner.num_states,
        max_running=max_running,
        in_place=loaded_runner.states_in_place,
    )


def _intake(loaded_runner: LoadedRunner, cache: PrefixCache) -> Intake:
    welcome = loaded_runner.welcome
    return Intake(
        vocab_size=welcome.vocab_size,
        block_size=welcome.block_size,
        max_model_len=welcome.max_model_len,
        fits=cache.fits,
        constraint_of=loaded_runner.constraint_of,
        forget_grammars=loaded_runner.forget_grammars,
        has_modules=welcome.has_modules,
    )
