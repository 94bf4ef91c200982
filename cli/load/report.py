"""The report of a load run: numbers from its outcomes, as a record and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import typer

from cli.load.load import RequestOutcome
from cli.load.percentiles import Summary, summarise
from cli.output import print_table


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One load run. Seconds and tokens; failed requests count in `errors` alone."""

    seed: int
    requests: int
    succeeded: int
    errors: dict[str, int]
    wall_s: float
    requests_per_s: float
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int | None  # None: the server did not say
    hit_rate: float | None  # cached of all prompt tokens
    ttft_s: Summary | None
    itl_s: Summary | None
    e2e_s: Summary | None


def make_report(outcomes: Sequence[RequestOutcome], wall_s: float, seed: int) -> LoadReport:
    """The numbers of `outcomes`, a run of `wall_s` seconds."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    output_tokens = sum(outcome.output_tokens for outcome in good)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    said = [outcome.cached_tokens for outcome in good if outcome.cached_tokens is not None]
    cached_tokens = sum(said) if said else None
    return LoadReport(
        seed=seed,
        requests=len(outcomes),
        succeeded=len(good),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        wall_s=wall_s,
        requests_per_s=len(good) / wall_s,
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / wall_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=None if cached_tokens is None else cached_tokens / max(prompt_tokens, 1),
        ttft_s=summarise([outcome.ttft_s for outcome in good if outcome.ttft_s is not None]),
        itl_s=summarise([gap for outcome in good for gap in outcome.gaps_s]),
        e2e_s=summarise([outcome.e2e_s for outcome in good]),
    )


def show(report: LoadReport) -> None:
    """The report as tables on standard output."""
    times = {"TTFT": report.ttft_s, "ITL": report.itl_s, "E2E": report.e2e_s}
    print_table(
        "Times in ms",
        ("", "mean", "p50", "p90", "p95", "p99", "max"),
        (_time_row(name, summary) for name, summary in times.items()),
    )
    print_table("Load", ("", ""), _load_rows(report))
    for error, count in sorted(report.errors.items()):
        typer.echo(f"{count} failed: {error}", err=True)


def _load_rows(report: LoadReport) -> list[tuple[str, str]]:
    hit_rate = "not said" if report.hit_rate is None else f"{report.hit_rate:.1%}"
    return [
        ("requests", f"{report.succeeded} of {report.requests}"),
        ("wall time", f"{report.wall_s:.2f} s"),
        ("requests/s", f"{report.requests_per_s:.2f}"),
        ("output tokens/s", f"{report.output_tokens_per_s:.1f}"),
        ("output tokens", f"{report.output_tokens}"),
        ("prompt tokens", f"{report.prompt_tokens}"),
        ("from the cache", hit_rate),
        ("seed", f"{report.seed}"),
    ]


def _time_row(name: str, summary: Summary | None) -> tuple[str, ...]:
    if summary is None:
        return (name, *["-"] * 6)
    values = (summary.mean, summary.p50, summary.p90, summary.p95, summary.p99, summary.max)
    return (name, *(f"{value * 1e3:.1f}" for value in values))
