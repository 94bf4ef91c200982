"""The table of a rate search: each rate, and whether enough of its requests kept the SLO."""

from cli.echo import echo
from cli.load.percentiles import Summary
from cli.load.rate_search import FoundRate, RateProbe
from cli.load.report import times_of
from cli.output import print_table


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
