"""Puts an engine together around a runner.

Knows: which part needs which. Does not know: models and devices (`main.py` brings a runner),
or signals (`process.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from engine.copies import Copies
from engine.core import EngineCore
from engine.draft import StepLimits
from engine.holdings import Holdings
from engine.intake import Intake
from engine.link import Link
from engine.lower_tiers import LowerTiers
from engine.messages import Welcome
from engine.parts import Parts
from engine.pins import Pins, most_pinned
from engine.queue import FairQueue, QueueLimits
from engine.scheduler import Scheduler
from engine.settle import Settler
from engine.stats import Meter
from engine.step import Runner
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction import EvictionPolicy, LeastRecentlyUsed
from prefix_cache.hashing import Digest, xxh3_128_digest
from prefix_cache.recompute import LoadOrRecompute
from prefix_cache.single_flight import SingleFlight


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine needs to know of the model that its runner computes."""

    fingerprint: bytes
    vocab_size: int
    context_len: int  # tokens
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine."""

    step: StepLimits
    queue: QueueLimits
    single_flight_deadline_s: float
    steps_ahead: int = 0  # steps on their way when the next is decided: 0 or 1


@dataclass(frozen=True, slots=True)
class Computer:
    """A runner, its pool's size, and how it says that the device has no room."""

    runner: Runner
    facts: ModelFacts
    num_blocks: int
    block_size: int
    out_of_memory: type[Exception]


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the cache keeps blocks: what it evicts first, how keys are made, the lower tiers."""

    policy: EvictionPolicy = field(default_factory=LeastRecentlyUsed)
    digest: Digest = xxh3_128_digest
    lower: LowerTiers = field(default_factory=LowerTiers)


def assemble(
    computer: Computer,
    link: Link,
    limits: Limits,
    keeping: Keeping | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """An engine that serves `link` with `computer`; without `keeping`, on the device alone."""
    facts = computer.facts
    keeping = keeping or Keeping()
    cache = PrefixCache(
        num_blocks=computer.num_blocks,
        block_size=computer.block_size,
        policy=keeping.policy,
        digest=keeping.digest,
        tiers=keeping.lower.tiers,
    )
    meter = Meter(started=clock())
    rates = LoadOrRecompute(block_size=computer.block_size, block_bytes=keeping.lower.block_bytes)
    copies = Copies(cache, keeping.lower.mover, keeping.lower.disk, rates)
    holdings = Holdings(
        cache,
        SingleFlight(),
        copies,
        rates,
        single_flight_deadline_s=limits.single_flight_deadline_s,
    )
    scheduler = Scheduler(FairQueue(limits.queue), holdings, limits.step, meter, clock)
    welcome = _welcome(computer)
    return EngineCore(
        Parts(
            link=link,
            intake=Intake(
                vocab_size=facts.vocab_size,
                block_size=computer.block_size,
                max_model_len=welcome.max_model_len,
                fits=cache.fits,
            ),
            scheduler=scheduler,
            settler=Settler(
                scheduler, holdings, meter, rates.prefill, eos_token_ids=facts.eos_token_ids
            ),
            runner=computer.runner,
            cache=cache,
            pins=Pins(
                cache, most_pinned(computer.num_blocks, cache.blocks_for(welcome.max_model_len))
            ),
            copies=copies,
            rates=rates,
            meter=meter,
            welcome=welcome,
            clock=clock,
            pause=time.sleep,
            out_of_memory=computer.out_of_memory,
            steps_ahead=limits.steps_ahead,
        )
    )


def _welcome(computer: Computer) -> Welcome:
    facts = computer.facts
    return Welcome(
        engine_id=uuid4().hex,
        fingerprint=facts.fingerprint,
        vocab_size=facts.vocab_size,
        block_size=computer.block_size,
        max_model_len=min(facts.context_len, computer.num_blocks * computer.block_size),
        eos_token_ids=facts.eos_token_ids,
        device=facts.device,
        dtype=facts.dtype,
    )
