"""Plots of load runs, as SVG: times of requests during the run, distributions, goodput by rate."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cli.charts import Curve, draw_curves, write_chart
from cli.errors import CliError
from cli.load.percentiles import percentile
from cli.load.rate_search import RateProbe
from cli.load.sender import RequestOutcome

MOST_DOTS = 1000  # maximum number of dots of a curve, since browsers are slow with more dots
Runs = Mapping[str, Sequence[RequestOutcome]]
TimeOf = Callable[[RequestOutcome], float | None]
CurveOf = Callable[[Sequence[RequestOutcome], TimeOf], Curve]
_TIMES: Mapping[str, TimeOf] = {
    "TTFT": lambda outcome: outcome.ttft_s,
    "TPOT": lambda outcome: outcome.tpot_s,
}


def plot_runs(directory: Path, runs: Runs) -> None:
    """Write over-time.svg and distribution.svg with a curve for each named run. Raises CliError."""
    _make(directory)
    kept = max((-(-len(run) // MOST_DOTS) for run in runs.values()), default=1)
    share = "" if kept == 1 else f" (one request of {kept})"
    over_time = draw_curves(
        {name: curve[::kept] for name, curve in _named(runs, _over_time).items()},
        title=f"TTFT and TPOT by arrival{share}",
        across="seconds since the first arrival",
        up="ms",
        dots=True,
    )
    write_chart(directory / "over-time.svg", over_time)
    distribution = draw_curves(
        _named(runs, _distribution), title="Distribution", across="ms", up="requests (%)"
    )
    write_chart(directory / "distribution.svg", distribution)


def plot_goodput(directory: Path, probes: Sequence[RateProbe]) -> None:
    """Write goodput.svg: goodput, and requests a second, by arrivals a second.

    Probes that ended early are left out, because they were too short to measure a rate.
    """
    _make(directory)
    whole = sorted(
        (one for one in probes if one.ended == one.requests), key=lambda probe: probe.rate
    )
    reports = [(one.rate, one.report) for one in whole if one.report is not None]
    curves = {
        "all": [(rate, report.requests_per_s) for rate, report in reports],
        "met the SLO": [
            (rate, report.goodput.requests_per_s) for rate, report in reports if report.goodput
        ],
    }
    chart = draw_curves(curves, title="Goodput", across="arrivals/s", up="requests/s")
    write_chart(directory / "goodput.svg", chart)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{directory}: {error.strerror}") from error


def _named(runs: Runs, curve_of: CurveOf) -> dict[str, Curve]:
    return {
        f"{name} {kind}".strip(): curve_of(outcomes, time)
        for name, outcomes in runs.items()
        for kind, time in _TIMES.items()
    }


def _over_time(outcomes: Sequence[RequestOutcome], time: TimeOf) -> Curve:
    began = min((outcome.arrived_at for outcome in outcomes), default=0.0)
    in_order = sorted(outcomes, key=lambda outcome: outcome.arrived_at)
    return [
        (outcome.arrived_at - began, 1e3 * taken)
        for outcome in in_order
        if (taken := time(outcome)) is not None
    ]


def _distribution(outcomes: Sequence[RequestOutcome], time: TimeOf) -> Curve:
    times = [taken for outcome in outcomes if (taken := time(outcome)) is not None]
    return [(1e3 * percentile(times, share), share) for share in range(101)] if times else []
