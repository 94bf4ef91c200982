"""The runs of `ratoon bench`: a closed loop, arrivals, ways of batching, a rate search."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from cli.echo import echo
from cli.load.options import ArrivalFlags, LoadFlags, SloFlags
from cli.load.rate_search import FoundRate, ProbePlan, RateProbe, find_rate
from cli.load.report import LoadReport, make_report
from cli.load.requests.dataset import RequestSize
from cli.load.requests.prompts import draw_bodies
from cli.load.sender import PATHS, Body, LoadTarget, RequestOutcome, Sender, load_session
from cli.load.sending.arrivals import POISSON, arrival_times
from cli.load.sending.batching import Batching, ContinuousBatching, parse_batchings
from cli.load.sending.closed_loop import closed_loop
from cli.load.sending.open_loop import Arrival, GiveUp, OpenLoad, drive_open
from cli.load.sending.processes import LoadProcesses, wall_seconds
from cli.load.slo import Slo
from cli.progress import Advance, progress_bar


@dataclass(frozen=True, slots=True)
class SizedLoad:
    """The load, and its target server."""

    server: LoadTarget
    flags: LoadFlags
    arrivals: ArrivalFlags
    seed: int
    slo: Slo | None
    sizes: Mapping[int, RequestSize] | None = None

    @property
    def every_chunk(self) -> bool:
        """True for completions, where a chunk without text is a token too. False for chats."""
        return self.flags.endpoint == "completions"

    @property
    def places(self) -> Sequence[int]:
        """The requests' numbers in order of arrival, without requests too long for the model."""
        return range(self.flags.requests) if self.sizes is None else tuple(self.sizes)

    def bodies(self, name: str = "", count: int | None = None) -> list[Body]:
        """Draw the JSON bodies of all requests, or of the first `count`.

        Different names give different prompts.
        """
        count = len(self.places) if count is None else count
        seed = f"{self.seed} {name}" if name else self.seed
        sizes = None
        if self.sizes is not None:
            known = tuple(self.sizes.values())
            sizes = [known[number % len(known)] for number in range(count)]
        return draw_bodies(replace(self.flags, requests=count), self.server.model, seed, sizes)

    def report(
        self, outcomes: Sequence[RequestOutcome], arrivals_per_s: float | None = None
    ) -> LoadReport:
        """Sum up the outcomes of a run."""
        return make_report(
            outcomes, wall_seconds(outcomes), self.seed, slo=self.slo, arrivals_per_s=arrivals_per_s
        )


def run_closed(load: SizedLoad) -> list[RequestOutcome]:
    """Run a closed loop of --concurrency callers."""

    async def run() -> list[RequestOutcome]:
        bodies = load.bodies()
        url = load.server.url + PATHS[load.flags.endpoint]
        async with load_session(load.server.timeout_s) as session:
            sender = Sender(session, url, load.server.key, every_chunk=load.every_chunk)
            with progress_bar("requests", len(bodies)) as advance:
                chains = ((body,) for body in bodies)
                return await closed_loop(
                    chains, load.flags.concurrency, sender.ask, Counted(advance)
                )

    return asyncio.run(run())


def run_batchings(load: SizedLoad) -> Mapping[str, tuple[list[RequestOutcome], LoadReport]]:
    """Run the same requests with one way of batching after another. Raises BadSetting."""
    batchings = parse_batchings(load.arrivals.batching or "continuous")
    times = _times(load)
    with LoadProcesses(load.flags.processes) as processes:
        return {
            name: run_open(load, name, batching, times, processes)
            for name, batching in batchings.items()
        }


def run_open(
    load: SizedLoad, name: str, batching: Batching, times: Sequence[float], processes: LoadProcesses
) -> tuple[list[RequestOutcome], LoadReport]:
    """Run requests that arrive at these times."""
    echo(f"{name}: {len(times)} requests in {times[-1]:.1f} s", err=True)
    arrivals = tuple(map(Arrival, times, load.bodies(name)))
    opened = _opened(load, arrivals, batching)
    outcomes = drive_open(opened, processes)
    return outcomes, load.report(outcomes, _per_second(times))


def run_search(load: SizedLoad, slo: Slo, goal: SloFlags) -> FoundRate:
    """Find the highest rate at which enough requests meet `slo`."""

    def probe(plan: ProbePlan) -> RateProbe:
        kind = load.arrivals.arrivals or POISSON
        times = arrival_times(kind, plan.rate, plan.requests, load.seed)
        # Each probe has a name of its own, so that its prompts are new and none is cached.
        arrivals = tuple(map(Arrival, times, load.bodies(f"{plan.rate}", plan.requests)))
        end = GiveUp(slo, plan.most_missed, plan.after_s)
        opened = replace(_opened(load, arrivals, ContinuousBatching()), give_up=end)
        outcomes = drive_open(opened, processes)
        made = _probe(load, slo, plan, outcomes)
        echo(f"{made.rate:.2f}/s: {made.met} of {made.requests} met it", err=True)
        return made

    with LoadProcesses(load.flags.processes) as processes:
        return find_rate(
            probe,
            start=load.arrivals.rate or 1.0,
            share=goal.slo_share,
            seconds=goal.find_seconds,
            clock=time.perf_counter,
        )


def _probe(
    load: SizedLoad, slo: Slo, plan: ProbePlan, outcomes: Sequence[RequestOutcome]
) -> RateProbe:
    met = sum(map(slo.is_met_by, outcomes))
    missed = len(outcomes) - met
    attained = True if met >= plan.requests - plan.most_missed else None
    return RateProbe(
        rate=plan.rate,
        requests=plan.requests,
        ended=len(outcomes),
        met=met,
        attained=False if missed > plan.most_missed else attained,
        report=load.report(outcomes, plan.rate) if outcomes else None,
    )


def _opened(load: SizedLoad, arrivals: tuple[Arrival, ...], batching: Batching) -> OpenLoad:
    path = PATHS[load.flags.endpoint]
    return OpenLoad(load.server, path, arrivals, load.every_chunk, batching)


def _times(load: SizedLoad) -> list[float]:
    """Draw arrival times.

    In a comparison of batching without a rate, all requests arrive at once.
    """
    flags, places = load.arrivals, load.places
    rate = inf if flags.rate is None and flags.arrivals is None else flags.rate
    times = arrival_times(flags.arrivals or POISSON, rate, places[-1] + 1, load.seed)
    return [times[place] for place in places]


def _per_second(times: Sequence[float]) -> float:
    return (len(times) - 1) / times[-1] if times[-1] else inf


class Counted:
    """A progress bar that also shows the number of failed requests."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._failed = 0

    def __call__(self, outcome: RequestOutcome) -> None:
        """Count a request that has ended."""
        self._failed += outcome.error is not None
        self._advance(1, name=f"requests ({self._failed} failed)" if self._failed else None)
