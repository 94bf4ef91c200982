"""The results of a replay: hit rates, bytes and estimated times, as record, tables and plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from cli.charts import draw_curves
from cli.echo import echo
from cli.load.percentiles import Summary, summarise
from cli.output import print_table
from cli.plan.machine import MachineModel, ModelShape
from cli.plan.units import gib
from cli.simulation.replay import Replayed, ServedRequest, TierSizes
from cli.simulation.states import StatesReport
from storage.move import Tier


@dataclass(frozen=True, slots=True)
class HitRates:
    """The cached share of input tokens, in total and by the tokens' tier.

    Tokens fetched from another replica count as cached, but in no tier.
    """

    requests: int
    input_tokens: int
    token_hit_rate: float
    by_tier: dict[str, float]


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """The bytes copied to and from a tier below the device."""

    written: int
    loaded: int


@dataclass(frozen=True, slots=True)
class Point:
    """The hit rate at one total size of the tiers."""

    tokens: int
    token_hit_rate: float


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The results of a replay, and optionally of replays with other sizes."""

    policy: str
    block_size: int
    tokens: TierSizes
    requests: int
    input_tokens: int
    token_hit_rate: float
    compute_saved: float
    by_tier: dict[str, float]
    by_tenant: dict[str, HitRates]
    moved_bytes: dict[str, MovedBytes]
    too_long: int
    ttft_ms: Summary | None
    ttft_without_cache_ms: Summary | None
    blocks_per_second: float
    by_size: list[Point]
    states: StatesReport | UnsetType = UNSET


def make_report(
    run: Replayed, shape: ModelShape, machine: MachineModel, by_size: Sequence[Point]
) -> SimulationReport:
    """Compute the report from the replay."""
    served = run.served
    whole = hit_rates(served)
    tenants = sorted({one.tenant for one in served})
    cold = [machine.prefill_seconds(shape, one.input_tokens) for one in served]
    warm = [
        machine.prefill_seconds(shape, one.computed, one.input_tokens - one.computed)
        for one in served
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
        too_long=run.too_long,
        ttft_ms=summarise([1000 * _ttft(one, shape, machine) for one in served]),
        ttft_without_cache_ms=summarise([machine.start_ms + 1000 * s for s in cold]),
        blocks_per_second=run.blocks_per_second,
        by_size=list(by_size),
        states=UNSET if run.states is None else run.states,
    )


def hit_rates(served: Sequence[ServedRequest]) -> HitRates:
    """Compute the total hit rates of these requests."""
    total = sum(one.input_tokens for one in served)
    found = {
        "device": sum(one.from_device for one in served),
        "host": sum(one.from_host for one in served),
        "disk": sum(one.from_disk for one in served),
    }
    by_tier = {tier: tokens / total for tier, tokens in found.items()}
    rate = (sum(found.values()) + sum(one.fetched for one in served)) / total
    return HitRates(len(served), total, rate, by_tier)


def show(report: SimulationReport) -> None:
    """Print the report."""
    title = f"Cached input tokens, {report.policy}, {report.tokens.total:,} tokens"
    whole = HitRates(report.requests, report.input_tokens, report.token_hit_rate, report.by_tier)
    rows = [_rates("all", whole)]
    if len(report.by_tenant) > 1:
        rows += [_rates(tenant, rates) for tenant, rates in report.by_tenant.items()]
    columns = ("tenant", "requests", "input tokens", "cached", "device", "host", "disk")
    print_table(title, columns, rows)
    print_table(
        "Copied, GB",
        ("tier", "written", "loaded"),
        [
            (tier, f"{moved.written / 1e9:,.1f}", f"{moved.loaded / 1e9:,.1f}")
            for tier, moved in report.moved_bytes.items()
        ],
    )
    print_table(
        "Estimated TTFT in ms",
        ("", "mean", "p50", "p90", "p99"),
        [_times("with the cache", report.ttft_ms), _times("without", report.ttft_without_cache_ms)],
    )
    if report.states is not UNSET:
        _show_states(report.states, report.input_tokens)
    if report.by_size:
        print_table(
            "By size",
            ("tokens", "cached"),
            [(f"{one.tokens:,}", f"{one.token_hit_rate:.1%}") for one in report.by_size],
        )
    if report.too_long:
        echo(f"{report.too_long} prompts were longer than the device tier")
    echo(
        f"{report.compute_saved:.1%} of the prefill's FLOPs saved; "
        f"{report.blocks_per_second:,.0f} blocks replayed a second"
    )


def _show_states(states: StatesReport, input_tokens: int) -> None:
    names = ("held", "made", "hits", "evicted", "refused")
    print_table(
        f"Checkpoints: {states.slots:,} slots of {gib(states.state_bytes)}",
        names,
        [[f"{getattr(states, name):,}" for name in names]],
    )
    echo(
        f"{states.cut_tokens / input_tokens:.1%} of the input tokens were cached and computed "
        "again, as no state was kept at their end"
    )


def draw(curves: Mapping[str, Sequence[Point]], title: str) -> bytes:
    """Draw a curve for each policy: hit rate in percent by the tiers' total size in tokens."""
    return draw_curves(
        {
            name: [(one.tokens / 1e6, 100 * one.token_hit_rate) for one in points]
            for name, points in curves.items()
        },
        title=title,
        across="tokens in all tiers (millions)",
        up="cached input tokens (%)",
    )


def _moved_bytes(run: Replayed, shape: ModelShape) -> dict[str, MovedBytes]:
    size = run.block_size * shape.kv_bytes_per_token
    return {
        tier.value: MovedBytes(run.written[tier] * size, run.loaded[tier] * size)
        for tier in (Tier.HOST, Tier.DISK)
    }


def _ttft(one: ServedRequest, shape: ModelShape, machine: MachineModel) -> float:
    return machine.ttft_seconds(
        shape, one.input_tokens, one.from_device, one.from_host, one.from_disk
    )


def _rates(name: str, rates: HitRates) -> tuple[str, ...]:
    by_tier = tuple(f"{rates.by_tier[tier]:.1%}" for tier in ("device", "host", "disk"))
    whole = (f"{rates.requests:,}", f"{rates.input_tokens:,}", f"{rates.token_hit_rate:.1%}")
    return (name, *whole, *by_tier)


def _times(name: str, times: Summary | None) -> tuple[str, ...]:
    if times is None:
        return (name, "", "", "", "")
    return (name, *(f"{ms:,.0f}" for ms in (times.mean, times.p50, times.p90, times.p99)))
