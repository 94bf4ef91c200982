"""Which of the server's processes and files are well, for the operator.

Knows: the engine as this process sees it, its disk process, the gateway's workers, and the faults
of what the gateway keeps. Does not know: other gateways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from engine.link.view_messages import Overview
from gateway.overview.known import ToldWorker
from gateway.state.faults import Fault

_DISK_IS_WELL = frozenset({"up", "starting"})


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One process, or one thing that is kept. `since`: seconds since the epoch, if it is known."""

    process: str  # engine, disk, gateway, state, limits, data_dir
    ok: bool
    since: float | None
    detail: str


def health(
    overview: Overview | None,
    faults: Iterable[Fault],
    *,
    is_stalled: bool,
    workers: Iterable[ToldWorker],
    silent: Sequence[int],
    now: float,
) -> list[Health]:
    """All of them. `overview` is None while the engine does not answer; `silent` are workers."""
    found = [_engine(overview, is_stalled=is_stalled, now=now)]
    found += [
        Health(process="gateway", ok=True, since=one.started, detail=f"worker {one.pid}")
        for one in sorted(workers, key=attrgetter("pid"))
    ]
    found += [
        Health(process="gateway", ok=False, since=None, detail=f"worker {pid} does not answer")
        for pid in silent
    ]
    if overview is not None and overview.disk is not None:
        found.append(_disk(overview.disk.state, is_full=overview.disk.disk_full))
    found += [
        Health(process=_kept(fault), ok=False, since=None, detail=fault.reason) for fault in faults
    ]
    return found


def _engine(overview: Overview | None, *, is_stalled: bool, now: float) -> Health:
    if overview is not None:
        since, detail = now - overview.uptime_s, f"engine {overview.engine_id}"
        return Health(process="engine", ok=True, since=since, detail=detail)
    detail = "it does not answer" if is_stalled else "no engine is connected"
    return Health(process="engine", ok=False, since=None, detail=detail)


def _disk(state: str, *, is_full: bool) -> Health:
    detail = f"{state}; its file system is full" if is_full else state
    is_well = state in _DISK_IS_WELL and not is_full
    return Health(process="disk", ok=is_well, since=None, detail=detail)


def _kept(fault: Fault) -> str:
    return "data_dir" if fault.status == "disk_full" else fault.status.partition("_")[0]
