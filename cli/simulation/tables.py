"""A simulation's report as tables.

Knows: rich tables. Does not know: where the numbers come from.
"""

from __future__ import annotations

import typer

from cli.output import print_table
from cli.percentiles import Summary
from cli.simulation.results import HitRates, SimulationReport


def show(report: SimulationReport) -> None:
    """The report on standard output."""
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
        [
            _times("with the cache", report.ttft_ms),
            _times("without", report.ttft_without_cache_ms),
        ],
    )
    if report.by_size:
        print_table(
            "By size",
            ("tokens", "cached"),
            [(f"{one.tokens:,}", f"{one.token_hit_rate:.1%}") for one in report.by_size],
        )
    if report.too_long:
        typer.echo(f"{report.too_long} prompts were longer than the device tier")
    typer.echo(
        f"{report.compute_saved:.1%} of the prefill's FLOPs saved; "
        f"{report.blocks_per_second:,.0f} blocks replayed a second"
    )


def _rates(name: str, rates: HitRates) -> tuple[str, ...]:
    by_tier = tuple(f"{rates.by_tier[tier]:.1%}" for tier in ("device", "host", "disk"))
    whole = (f"{rates.requests:,}", f"{rates.input_tokens:,}", f"{rates.token_hit_rate:.1%}")
    return (name, *whole, *by_tier)


def _times(name: str, times: Summary | None) -> tuple[str, ...]:
    if times is None:
        return (name, "", "", "", "")
    return (name, *(f"{ms:,.0f}" for ms in (times.mean, times.p50, times.p90, times.p99)))
