"""Tables that compare several runs: one run for each way of batching, or for each tried rate."""

from collections.abc import Callable

import msgspec

from cli.echo import echo
from cli.load.percentiles import Summary
from cli.load.rate_search import FoundRate, RateProbe
from cli.load.report import LoadReport, goodput_text, show_errors, times_of
from cli.output import print_table

_SHOWN = ("p50", "p99")


class BatchingReport(msgspec.Struct, frozen=True):
    """The reports of runs with the same arrivals and lengths, one for each way of batching."""

    runs: dict[str, LoadReport]


def show_batchings(report: BatchingReport) -> None:
    """Print a column for each way of batching."""
    runs = list(report.runs.values())
    rows: list[tuple[str, Callable[[LoadReport], str]]] = [
        ("requests", lambda run: f"{run.succeeded} of {run.requests}"),
        ("wall time, s", lambda run: f"{run.wall_s:.2f}"),
        ("requests/s", lambda run: f"{run.requests_per_s:.2f}"),
        ("output tokens/s", lambda run: f"{run.output_tokens_per_s:.1f}"),
        ("output characters/s", lambda run: f"{run.output_characters_per_s:.1f}"),
    ]
    cells = [(name, *map(cell, runs)) for name, cell in rows]
    for kind in times_of(runs[0]):
        for percent in _SHOWN:
            times = [_ms(times_of(run)[kind], percent) for run in runs]
            cells.append((f"{kind} {percent}, ms", *times))
    if all(run.goodput is not None for run in runs):
        met = [goodput_text(run.goodput) for run in runs if run.goodput is not None]
        cells.append(("goodput", *met))
    print_table("Batching", ("", *report.runs), cells)
    for name, run in report.runs.items():
        show_errors(run, f"{name}: ")


def show_found(found: FoundRate) -> None:
    """Print the rates that were tried, and the highest rate that kept the SLO."""
    columns = ("arrivals/s", "met it", "requests", "TTFT p99, ms", "TPOT p99, ms", "wait p99, ms")
    print_table(
        f"Rates at which {found.share:.1%} have to meet the SLO",
        (*columns, ""),
        map(_probe_row, sorted(found.probes, key=lambda probe: probe.rate)),
    )
    echo(_conclusion(found))


def _probe_row(probe: RateProbe) -> tuple[str, ...]:
    times = {} if probe.report is None else times_of(probe.report)
    came_to = {True: "enough", False: "too few", None: "out of time"}[probe.attained]
    return (
        f"{probe.rate:.2f}",
        f"{probe.met}",
        f"{probe.ended} of {probe.requests}",
        *(_ms(times.get(kind), "p99") for kind in ("TTFT", "TPOT", "wait")),
        came_to,
    )


def _conclusion(found: FoundRate) -> str:
    seconds = f"found in {found.seconds:.0f} s"
    if found.highest is None:
        return f"No rate that was tried meets it ({seconds})."
    if found.lowest_missed is None:
        return f"{found.highest:.2f} requests/s meet it, perhaps more: time was up ({seconds})."
    return f"{found.highest:.2f} requests/s meet it, {found.lowest_missed:.2f} do not ({seconds})."


def _ms(summary: Summary | None, percent: str) -> str:
    return "-" if summary is None else f"{1e3 * getattr(summary, percent):.1f}"
