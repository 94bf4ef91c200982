"""The results of a replay: hit rates, bytes, estimated times.

Knows: sums and percentiles. Does not know: how requests were served, or how this is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.percentiles import Summary, summarise
from cli.simulation.machine import Machine, ModelShape
from cli.simulation.replay import Replayed, Served, Sizes
from storage.move import Tier


@dataclass(frozen=True, slots=True)
class HitRates:
    """Cached input tokens / input tokens, and by the tier they were found in."""

    requests: int
    input_tokens: int
    token_hit_rate: float
    by_tier: dict[str, float]


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """Bytes copied to and from a tier below the device."""

    written: int
    loaded: int


@dataclass(frozen=True, slots=True)
class Point:
    """The hit rate at one size of all tiers together."""

    tokens: int
    token_hit_rate: float


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One replay, and perhaps the same with other sizes."""

    policy: str
    block_size: int
    tokens: Sizes  # that each tier holds
    requests: int
    input_tokens: int
    token_hit_rate: float
    compute_saved: float  # of the FLOPs that prefill would take without a cache
    by_tier: dict[str, float]
    by_tenant: dict[str, HitRates]
    moved_bytes: dict[str, MovedBytes]
    too_long: int  # prompts that the device tier could not hold
    ttft_ms: Summary | None  # estimated
    ttft_without_cache_ms: Summary | None  # estimated
    blocks_per_second: float  # replayed
    by_size: list[Point]


@dataclass(frozen=True, slots=True)
class Run:
    """What a trace was replayed with, and how it went."""

    policy: str
    block_size: int
    sizes: Sizes
    replayed: Replayed
    blocks_per_second: float


def make_report(
    run: Run, shape: ModelShape, machine: Machine, by_size: Sequence[Point]
) -> SimulationReport:
    """Add it all up."""
    served = run.replayed.served
    whole = hit_rates(served)
    tenants = sorted({one.tenant for one in served})
    cold = [machine.prefill_seconds(shape, one.input_tokens) for one in served]
    warm = [
        machine.prefill_seconds(shape, one.input_tokens - one.cached, one.cached) for one in served
    ]
    return SimulationReport(
        policy=run.policy,
        block_size=run.block_size,
        tokens=run.sizes,
        requests=whole.requests,
        input_tokens=whole.input_tokens,
        token_hit_rate=whole.token_hit_rate,
        compute_saved=1 - sum(warm) / sum(cold),
        by_tier=whole.by_tier,
        by_tenant={t: hit_rates([one for one in served if one.tenant == t]) for t in tenants},
        moved_bytes=_moved_bytes(run, shape),
        too_long=run.replayed.too_long,
        ttft_ms=summarise([1000 * _ttft(one, shape, machine) for one in served]),
        ttft_without_cache_ms=summarise([machine.start_ms + 1000 * s for s in cold]),
        blocks_per_second=run.blocks_per_second,
        by_size=list(by_size),
    )


def hit_rates(served: Sequence[Served]) -> HitRates:
    """The rates of these requests together."""
    total = sum(one.input_tokens for one in served)
    found = {
        "device": sum(one.from_device for one in served),
        "host": sum(one.from_host for one in served),
        "disk": sum(one.from_disk for one in served),
    }
    by_tier = {tier: tokens / total for tier, tokens in found.items()}
    return HitRates(len(served), total, sum(found.values()) / total, by_tier)


def _moved_bytes(run: Run, shape: ModelShape) -> dict[str, MovedBytes]:
    size = run.block_size * shape.kv_bytes_per_token
    written, loaded = run.replayed.written, run.replayed.loaded
    return {
        tier.value: MovedBytes(written[tier] * size, loaded[tier] * size)
        for tier in (Tier.HOST, Tier.DISK)
    }


def _ttft(one: Served, shape: ModelShape, machine: Machine) -> float:
    """The time that the replay waited for copies or, if it did not, what they would take."""
    host, disk = one.from_host, one.from_disk
    if one.waited_s:
        host = disk = 0
    cached_above = one.cached - host - disk
    return one.waited_s + machine.ttft_seconds(shape, one.input_tokens, cached_above, host, disk)
