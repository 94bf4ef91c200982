"""The report of a load run, computed from its requests' outcomes: a record, and tables."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from cli.echo import echo
from cli.load.percentiles import Summary, summarise
from cli.load.sender import RequestOutcome
from cli.load.slo import Goodput, Slo, goodput
from cli.output import print_table

# seconds of delay; if 1 % of requests are sent later than this, the client is too slow
LATE_S = 0.01


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a load run. Failed requests count only in `errors`."""

    seed: int
    requests: int
    succeeded: int
    errors: dict[str, int]
    wall_s: float
    requests_per_s: float
    output_tokens: int
    output_tokens_per_s: float
    output_characters: int
    output_characters_per_s: float
    prompt_tokens: int
    # None if the server did not report cached tokens
    cached_tokens: int | None
    hit_rate: float | None
    ttft_s: Summary | None
    # for each request, the time from first to last chunk, divided by the output tokens after the
    # first
    tpot_s: Summary | None
    itl_s: Summary | None  # gaps between chunks of one answer, in seconds
    e2e_s: Summary | None
    # arrivals a second; None: a closed loop; infinite (null): all arrive at once
    arrivals_per_s: float | None = None
    waited_s: Summary | None = None  # seconds from arrival to sending; None: a closed loop
    goodput: Goodput | None = None  # requests that met the SLO; None: no SLO was given


def make_report(
    outcomes: Sequence[RequestOutcome],
    wall_s: float,
    seed: int,
    *,
    slo: Slo | None = None,
    arrivals_per_s: float | None = None,
) -> LoadReport:
    """Sum up a run of `wall_s` seconds. Only an open loop has `arrivals_per_s`."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    output_tokens = sum(outcome.output_tokens for outcome in good)
    output_characters = sum(outcome.output_characters for outcome in good)
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
        output_characters=output_characters,
        output_characters_per_s=output_characters / wall_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=None if cached_tokens is None else cached_tokens / max(prompt_tokens, 1),
        ttft_s=summarise([outcome.ttft_s for outcome in good if outcome.ttft_s is not None]),
        tpot_s=summarise([outcome.tpot_s for outcome in good if outcome.tpot_s is not None]),
        itl_s=summarise([gap for outcome in good for gap in outcome.gaps_s]),
        e2e_s=summarise([outcome.e2e_s for outcome in good]),
        arrivals_per_s=arrivals_per_s,
        waited_s=None
        if arrivals_per_s is None
        else summarise([outcome.waited_s for outcome in outcomes]),
        goodput=None if slo is None else goodput(outcomes, slo, wall_s),
    )


def show(report: LoadReport) -> None:
    """Print the report as tables."""
    print_table(
        "Times in ms",
        ("", "mean", "p50", "p90", "p95", "p99", "max", "of"),
        (_time_row(name, summary) for name, summary in times_of(report).items()),
    )
    print_table("Load", ("", ""), _load_rows(report))
    show_errors(report)


def times_of(report: LoadReport) -> dict[str, Summary | None]:
    """Return the distributions by the names in tables. Only an open loop has waits."""
    times = {"TTFT": report.ttft_s, "TPOT": report.tpot_s, "ITL": report.itl_s, "E2E": report.e2e_s}
    return times if report.waited_s is None else {**times, "wait": report.waited_s}


def show_errors(report: LoadReport, name: str = "") -> None:
    """Print the errors of failed requests on standard error."""
    for error, count in sorted(report.errors.items()):
        echo(f"{name}{count} failed: {error}", err=True)


def warn_if_late(report: LoadReport) -> None:
    """Warn if the client was late to send requests."""
    if report.waited_s is not None and report.waited_s.p99 > LATE_S:
        echo(
            f"The client was late: 1 % of the requests were sent {1e3 * report.waited_s.p99:.0f} "
            "ms or more after they were due. Their times count from then. More --processes help.",
            err=True,
        )


def _load_rows(report: LoadReport) -> list[tuple[str, str]]:
    hit_rate = "not said" if report.hit_rate is None else f"{report.hit_rate:.1%}"
    arrivals, met = report.arrivals_per_s, report.goodput
    return [
        ("requests", f"{report.succeeded} of {report.requests}"),
        ("wall time", f"{report.wall_s:.2f} s"),
        *([] if arrivals is None else [("arrivals/s", f"{arrivals:.2f}")]),
        ("requests/s", f"{report.requests_per_s:.2f}"),
        *([] if met is None else [("goodput", goodput_text(met))]),
        ("output tokens/s", f"{report.output_tokens_per_s:.1f}"),
        ("output characters/s", f"{report.output_characters_per_s:.1f}"),
        ("output tokens", f"{report.output_tokens}"),
        ("prompt tokens", f"{report.prompt_tokens}"),
        ("from the cache", hit_rate),
        ("seed", f"{report.seed}"),
    ]


def goodput_text(met: Goodput) -> str:
    """Describe the goodput: requests a second that met the SLO, and their share."""
    return f"{met.requests_per_s:.2f} requests/s ({met.share:.1%})"


def _time_row(name: str, summary: Summary | None) -> tuple[str, ...]:
    if summary is None:
        return (name, *["-"] * 6, "0")
    values = (summary.mean, summary.p50, summary.p90, summary.p95, summary.p99, summary.max)
    return (name, *(f"{value * 1e3:.1f}" for value in values), f"{summary.count}")
