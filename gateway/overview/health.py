"""The health of the server's processes and files, for the operator.

The list has the engines and the router process, as this process sees them. The list also has the
engines' disk processes, the gateway's workers, and the faults of the stored state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import SentinelStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DiskStats
from engine.link.view_messages import Overview
from gateway.overview.known import ToldWorker
from gateway.replicas.joined_views import each_overview
from gateway.state.faults import Fault

_DISK_IS_WELL = frozenset({"up", "starting"})


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one process or store. `since` is in seconds since the epoch, if known."""

    process: (
        # name of the process or store: engine, disk ("engine 0" and so on if there are several),
        # router, gateway, state...
        str
    )
    ok: bool
    since: float | None
    detail: str
    fault: str = "is down"


def health(
    overview: Overview | None,
    faults: Iterable[Fault],
    *,
    is_stalled: bool,
    workers: Iterable[ToldWorker],
    silent: Sequence[int],
    now: float,
    replicas: Mapping[str, ReplicaHealth] | None = None,
    why_absent: str | None = None,
    router_answers: bool | None = None,
) -> list[Health]:
    """List the health of all processes and stores. `overview` is None while no engine answers.

    If there are several engines, `replicas` lists them and `overview` is their joined overview.
    `router_answers` tells whether the router process answers, or is None without a router process.
    """
    kept = (
        Health(process=_kept(fault), ok=False, since=None, detail=fault.reason) for fault in faults
    )
    if replicas:
        engines = _replicas(overview, replicas, now)
    else:
        engines = _alone(overview, why_absent, is_stalled=is_stalled, now=now)
    return [*engines, *_router(router_answers), *_gateways(workers, silent), *kept]


def _router(answers: bool | None) -> Iterator[Health]:
    if answers is not None:
        detail = "it chooses among the engines for all workers"
        if not answers:
            detail = "it does not answer: each worker chooses by its own requests"
        yield Health(process="router", ok=answers, since=None, detail=detail)


def _gateways(workers: Iterable[ToldWorker], silent: Sequence[int]) -> Iterator[Health]:
    for one in sorted(workers, key=attrgetter("pid")):
        yield Health(process="gateway", ok=True, since=one.started, detail=f"worker {one.pid}")
    for pid in silent:
        detail = f"worker {pid} does not answer"
        yield Health(process="gateway", ok=False, since=None, detail=detail)


def _alone(
    overview: Overview | None, why_absent: str | None, *, is_stalled: bool, now: float
) -> Iterator[Health]:
    engine = _engine(overview, is_stalled=is_stalled, now=now)
    yield engine if engine.ok else replace(engine, detail=why_absent or engine.detail)
    if overview is not None and overview.disk is not None:
        yield _disk(overview.disk)
    if overview is not None:
        yield from _sentinel(overview.sentinel)
        yield from _gaps(overview.gaps)


def _engine(overview: Overview | None, *, is_stalled: bool, now: float) -> Health:
    if overview is not None:
        since, detail = now - overview.uptime_s, f"engine {overview.engine_id}"
        return Health(process="engine", ok=True, since=since, detail=detail)
    detail = "it does not answer" if is_stalled else "no engine is connected"
    return Health(process="engine", ok=False, since=None, detail=detail)


def _replicas(
    overview: Overview | None, replicas: Mapping[str, ReplicaHealth], now: float
) -> Iterator[Health]:
    overviews = {} if overview is None else each_overview(overview)
    for name, health in replicas.items():
        one = overviews.get(name)
        engine = _engine(one, is_stalled=health.state == "stalled", now=now)
        if health.state != "ready":
            engine = replace(engine, ok=False, detail=health.why)
        elif one is not None:
            under_way = f"{one.running} running, {one.waiting} waiting"
            role = "" if health.role == "both" else f" ({health.role})"
            engine = replace(engine, detail=f"{engine.detail}{role}: {under_way}")
        yield replace(engine, process=f"engine {name}")
        if one is not None and one.disk is not None:
            yield replace(_disk(one.disk), process=f"disk {name}")
        for seen in () if one is None else (*_sentinel(one.sentinel), *_gaps(one.gaps)):
            yield replace(seen, process=f"{seen.process} {name}")


def _sentinel(sentinel: SentinelStats) -> Iterator[Health]:
    """Yield the result of computing answers again without the cache, once there is a result."""
    if not (sentinel.checked or sentinel.damaged_blocks):
        return
    detail = f"{sentinel.differed} of {sentinel.checked} answers differ without the cache"
    if sentinel.damaged_blocks:
        detail += f"; {sentinel.damaged_blocks} blocks were damaged in host memory"
    is_well = not (sentinel.differed or sentinel.damaged_blocks)
    if not is_well:
        detail += "; the engine's log has lines about it to send us"
    yield Health(process="cache", ok=is_well, since=None, detail=detail, fault="is wrong")


def _gaps(gaps: GapStats) -> Iterator[Health]:
    """Yield the result of comparing the times between tokens with their targets, if any."""
    if gaps.gaps or gaps.target_s:
        is_well = not (gaps.is_missed or gaps.is_too_short)
        detail = "99 in 100 keep to their targets" if is_well else gaps.describe()
        yield Health(process="gaps", ok=is_well, since=None, detail=detail, fault="are too long")


def _disk(disk: DiskStats) -> Health:
    detail = f"{disk.state}; its file system is full" if disk.disk_full else disk.state
    is_well = disk.state in _DISK_IS_WELL and not disk.disk_full
    return Health(process="disk", ok=is_well, since=None, detail=detail)


def _kept(fault: Fault) -> str:
    return "data_dir" if fault.status == "disk_full" else fault.status.partition("_")[0]
