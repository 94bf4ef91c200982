"""The last hour of the engine and of this gateway's latencies, with a sample every five seconds.

The history begins with the process. A page opened after an incident therefore shows the incident.
If the engine started within the last hour, the first sample has all its earlier events. Samples are
taken at multiples of INTERVAL_S seconds since the epoch. Each worker has a history. Counts of
tokens and blocks come from the engine, and latencies from all workers, so any worker can be asked.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter

import msgspec

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.stats.engine_stats import DraftStats
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import Overview, OverviewQuery
from gateway.overview.percentiles import Percentiles, percentiles
from gateway.processes.periodic import repeated
from gateway.replicas.joined_views import each_overview
from gateway.replicas.sums import merged, summed
from gateway.telemetry.metrics import GatewayMetrics, Latencies
from gateway.views import TokensByTier

INTERVAL_S = 5.0
KEPT_S = 3600.0
# maximum number of remembered engines; an engine that comes back continues its counters
ENGINES = 256


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The events of the `seconds` before `t`; `waiting` and `running` are the numbers at `t`.

    Latencies are None if the gateway answered nothing.
    """

    t: float  # seconds since the epoch
    # INTERVAL_S, or longer if the engine did not answer earlier looks
    seconds: float
    hit_tokens: TokensByTier
    computed_tokens: int
    generated_tokens: int
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    waiting: int
    running: int
    loads_blocks: int
    recomputed_blocks: int
    drafts: dict[str, DraftStats]


class _Look(msgspec.Struct, frozen=True):
    t: float
    overview: Overview
    # latest overview of each engine, including engines that are gone, by engine id
    engines: dict[str, Overview]
    latencies: Latencies


class History:
    """The samples of one process. `clock` returns seconds since the epoch."""

    def __init__(self, engine: Engine, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._last: _Look | None = None
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_S / INTERVAL_S))

    def since(self, t: float) -> list[Sample]:
        """List the samples after `t`, the oldest sample first."""
        return [sample for sample in self._samples if sample.t > t]

    async def look(self) -> None:
        """Add a sample of the events since the previous look, unless the engine is away."""
        try:
            overview = await self._engine.ask(OverviewQuery())
        except EngineError:
            return
        # Called in a thread, since it may read the files of all workers.
        latencies = await asyncio.to_thread(self._metrics.latencies)
        last = self._last or _before(self._grid(), overview, latencies)
        engines = _seen(last.engines, _by_engine(overview))
        look = self._last = _Look(self._grid(), overview, engines, latencies)
        if look.t > last.t:
            self._samples.append(_sample(last, look))

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Add a sample every INTERVAL_S seconds while this context is open."""
        async with repeated(self._look_when_due, "history"):
            yield

    async def _look_when_due(self) -> None:
        await asyncio.sleep(INTERVAL_S - self._clock() % INTERVAL_S)
        await self.look()

    def _grid(self) -> float:
        return round(self._clock() / INTERVAL_S) * INTERVAL_S


def _by_engine(overview: Overview) -> dict[str, Overview]:
    return {one.engine_id: one for one in each_overview(overview).values() or (overview,)}


def _before(now: float, overview: Overview, latencies: Latencies) -> _Look:
    """Make a first look with zero counts, at the earliest start of an engine within KEPT_S.

    Engines that started earlier are left out, since they did most of their work before the shown
    hour.
    """
    engines = _by_engine(overview)
    old = {name: one for name, one in engines.items() if one.uptime_s > KEPT_S}
    seconds = max((one.uptime_s for name, one in engines.items() if name not in old), default=0.0)
    if old:  # leaves out earlier events of old engines and earlier answers of the gateway
        return _Look(now - seconds, overview, old, latencies)
    nothing = latencies._replace(
        first_token=(0.0,) * len(latencies.first_token), gap=(0.0,) * len(latencies.gap)
    )
    return _Look(now - seconds, overview, old, nothing)


def _seen(before: dict[str, Overview], now: dict[str, Overview]) -> dict[str, Overview]:
    gone = {engine_id: one for engine_id, one in before.items() if engine_id not in now}
    return dict([*gone.items(), *now.items()][-ENGINES:])


def _sample(last: _Look, look: _Look) -> Sample:
    now = look.overview

    def more(name: str) -> int:
        """Count the events of all engines since the previous look.

        A new engine's count began at zero.
        """
        count = attrgetter(name)
        return sum(
            count(one) - (count(last.engines[engine_id]) if engine_id in last.engines else 0)
            for engine_id, one in _by_engine(now).items()
        )

    found = TierTokens(*(more(f"found.{tier}") for tier in ("device", "host", "disk")))
    return Sample(
        t=look.t,
        seconds=look.t - last.t,
        hit_tokens=TokensByTier.of(found),
        computed_tokens=more("computed_tokens"),
        generated_tokens=more("generated_tokens"),
        ttft_ms=_between(
            last.latencies.first_token,
            look.latencies.first_token,
            look.latencies.first_token_bounds,
        ),
        itl_ms=_between(last.latencies.gap, look.latencies.gap, look.latencies.gap_bounds),
        waiting=now.waiting,
        running=now.running,
        loads_blocks=more("loads_chosen"),
        recomputed_blocks=more("loads_refused"),
        drafts=_drafted(last, now),
    )


def _drafted(last: _Look, now: Overview) -> dict[str, DraftStats]:
    found = []
    for engine_id, one in _by_engine(now).items():
        before = last.engines[engine_id].drafts if engine_id in last.engines else {}
        found.append({name: drafts.since(before.get(name)) for name, drafts in one.drafts.items()})
    return {name: drafts for name, drafts in merged(found, summed).items() if drafts.drafts}


def _between(
    before: tuple[float, ...], after: tuple[float, ...], bounds: tuple[float, ...]
) -> Percentiles | None:
    counts = [new - old for old, new in zip(before, after, strict=True)]
    return percentiles(bounds, counts)
