"""`ratoon bench`: sends load to a running server and reports its performance."""

import asyncio
import secrets
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from cli.echo import echo
from cli.errors import BadSetting, CliError
from cli.load.comparison import BatchingReport, show_batchings, show_found
from cli.load.options import ArrivalFlags, LoadFlags, SloFlags
from cli.load.plots import plot_goodput, plot_runs
from cli.load.report import LoadReport, show, warn_if_late
from cli.load.requests.dataset import FLAG as DATASET
from cli.load.requests.dataset import RequestSize, read_sizes
from cli.load.requests.token_counts import token_counter
from cli.load.runs import SizedLoad, run_batchings, run_closed, run_search
from cli.load.sender import LoadTarget
from cli.load.slo import parse_slo
from cli.load.workload import run_workload
from cli.operating.admin_client import AdminClient
from cli.operating.server_target import load_target
from cli.options.options import TargetFlags
from cli.output import print_result


def bench(target: TargetFlags, load: LoadFlags, arrivals: ArrivalFlags, goal: SloFlags) -> None:
    """Load a running server; report times, tokens/s, goodput and the run's cache hit rate.

    A closed loop: each of --concurrency callers sends its next request when its last has ended.
    With --rate, --arrivals or --batching an open loop: requests arrive at set times. All prompts
    begin with the same --shared-tokens; every run draws new prompts unless --seed is given.

    TTFT is the time to the first chunk with text, reasoning or a call. ITL is each gap between two
    such chunks. TPOT is the time from the first to the last such chunk, divided by the output
    tokens after the first. E2E is the time of the whole request. TTFT and E2E begin when a request
    is sent or, in an open loop, when it arrives. Exits with 1 if no request succeeded.

    Examples: 200 requests by 16 callers, three quarters of each prompt shared; ten requests a
    second with the lengths of a data set; the highest rate that keeps an SLO:

        ratoon bench --requests 200 --concurrency 16 --prompt-tokens 1024 --shared-tokens 768

        ratoon bench --rate 10 --dataset sharegpt.json --slo ttft=2s,tpot=50ms

        ratoon bench --find-rate --slo ttft=2s,tpot=50ms --slo-share 0.99
    """
    check(load, arrivals, goal)
    url, key = load_target(target)
    seed = secrets.randbits(32) if load.seed is None else load.seed
    model, context = asyncio.run(_served(url, key, target.served_model))
    server = LoadTarget(url, key, model, load.timeout_s)
    if load.workload is not None:
        run_workload(load.workload, server, load, seed, context)
        return
    sizes = None if load.dataset is None else _sizes(load.dataset, server, load, seed, context)
    slo = None if goal.slo is None else parse_slo(goal.slo)
    sized = SizedLoad(server, load, arrivals, seed, slo, sizes)
    if goal.find_rate:
        search(sized, goal)
    elif arrivals.is_open:
        compare(sized)
    else:
        _finish([closed(sized)])


def check(load: LoadFlags, arrivals: ArrivalFlags, goal: SloFlags) -> None:
    """Raise BadSetting for flags that exclude each other."""
    if load.workload is not None and (
        arrivals.is_open or goal.slo or goal.find_rate or load.dataset or load.plot
    ):
        others = "--rate, --arrivals, --batching, --slo, --find-rate, --dataset and --plot"
        raise BadSetting("--workload", f"has requests and numbers of its own, without {others}")
    if goal.find_rate and goal.slo is None:
        raise BadSetting("--find-rate", "needs --slo")
    if goal.find_rate and arrivals.batching is not None:
        raise BadSetting("--find-rate", "sends every request when it arrives, without --batching")
    if goal.find_rate and arrivals.rate is not None and not isfinite(arrivals.rate):
        raise BadSetting("--rate", "is where --find-rate begins, and has to be finite")


def closed(load: SizedLoad) -> LoadReport:
    """Run a closed loop and report it."""
    outcomes = run_closed(load)
    report = load.report(outcomes)
    if load.flags.plot is not None:
        plot_runs(load.flags.plot, {"": outcomes})
    print_result(report, show, as_json=load.flags.json)
    return report


def compare(load: SizedLoad) -> None:
    """Run arrivals and report them: a single run, or several ways of batching side by side."""
    runs = run_batchings(load)
    if load.flags.plot is not None:
        names = {name: name if len(runs) > 1 else "" for name in runs}
        plot_runs(load.flags.plot, {names[name]: outcomes for name, (outcomes, _) in runs.items()})
    reports = {name: report for name, (_, report) in runs.items()}
    if len(reports) == 1:
        print_result(next(iter(reports.values())), show, as_json=load.flags.json)
    else:
        print_result(BatchingReport(reports), show_batchings, as_json=load.flags.json)
    if "continuous" in reports:
        warn_if_late(reports["continuous"])
    _finish(list(reports.values()))


def search(load: SizedLoad, goal: SloFlags) -> None:
    """Find the highest rate that keeps the SLO, and report it."""
    assert load.slo is not None
    found = run_search(load, load.slo, goal)
    if load.flags.plot is not None:
        plot_goodput(load.flags.plot, found.probes)
    print_result(found, show_found, as_json=load.flags.json)
    _finish([probe.report for probe in found.probes if probe.report is not None])


def _finish(reports: Sequence[LoadReport]) -> None:
    if not any(report.succeeded for report in reports):
        raise CliError("no request succeeded")


def _sizes(
    path: Path, server: LoadTarget, load: LoadFlags, seed: int, context: int | None
) -> dict[int, RequestSize]:
    """Read the data set's requests that fit the model, keyed by position in the data set.

    Prints how many requests do not fit. Raises BadSetting if no request fits.
    """
    read = read_sizes(
        path,
        load.requests,
        seed,
        block_size=load.trace_block,
        output=load.output_tokens,
        count_tokens=token_counter(server, load.tokenizer),
    )
    fits = {
        place: size
        for place, size in enumerate(read)
        if context is None or size.prompt + size.output <= context
    }
    if not fits:
        raise BadSetting(DATASET, f"no request of it fits {server.model}, which takes {context}")
    if len(fits) < len(read):
        echo(
            f"{len(read) - len(fits)} of {len(read)} requests are left out: they are longer than "
            f"the {context} tokens that {server.model} takes",
            err=True,
        )
    return fits


async def _served(url: str, key: str, name: str | None) -> tuple[str, int | None]:
    """Return the name of the served model (`name`, or the first) and its context, if known.

    Raises the errors of `AdminClient.call`.
    """
    async with AdminClient(url, key) as client:
        models = await client.rows("/v1/models", "data")
    found = next((one for one in models if one["id"] == name), models[0] if name is None else {})
    return name or str(found["id"]), found.get("max_model_len")
