"""The engine's counters of prompt tokens, by time window and by flow.

Each prompt is counted once, when it is first admitted. `queried` counts its tokens, `hit` those
found in the cache, and `fetched` those that another engine sent. `computed` counts all computed
prompt tokens, also those that are computed again.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from engine.link.stats.engine_stats import DraftStats, WindowStats
from engine.link.stats.flow_stats import FlowStats
from engine.link.stats.tier_stats import TierTokens
from prefix_cache.cache import PrefixCache
from prefix_cache.eviction.quota_usage import OwnerUse

WINDOWS_S = {"1m": 60, "10m": 600}
MAX_FLOWS = 4096
OTHER_FLOWS = "(other)"  # name of the common entry for the flows that were idle for longest

_QUERIED, _HIT, _COMPUTED, _FETCHED = range(4)


class WindowCounter:
    """A ring buffer of token sums, with one entry per second."""

    def __init__(self) -> None:
        seconds = max(WINDOWS_S.values())
        self._buckets: npt.NDArray[np.int64] = np.zeros((seconds, 4), np.int64)
        self._stamps: npt.NDArray[np.int64] = np.full(seconds, np.iinfo(np.int64).min)
        self._total: npt.NDArray[np.int64] = np.zeros(4, np.int64)

    def add(self, column: int, amount: int, now: float) -> None:
        """Add `amount` to a column. `now` is in seconds."""
        second = int(now)
        slot = second % len(self._stamps)
        if self._stamps[slot] != second:
            self._stamps[slot] = second
            self._buckets[slot] = 0
        self._buckets[slot, column] += amount
        self._total[column] += amount

    def window(self, seconds: int, now: float) -> WindowStats:
        """Return the sums over the last `seconds`. The ring's length is the maximum."""
        recent = self._stamps > int(now) - seconds
        return _window_stats(self._buckets[recent].sum(axis=0))

    def total(self) -> WindowStats:
        """Return the sums since the engine started."""
        return _window_stats(self._total)


class EngineCounters:
    """The engine's counters. Used by one thread only."""

    def __init__(self, *, started: float, max_flows: int = MAX_FLOWS) -> None:
        self.steps = 0
        self.rows_left_out = 0  # number of rows whose masks were too late for their step
        self.generated_tokens = 0
        self.found = TierTokens()
        self.drafts: dict[str, DraftStats] = {}
        self._started = started
        self._max_flows = max_flows
        self._windows = WindowCounter()
        self._flows: dict[str, FlowStats] = {}  # the flow that was idle for longest comes first

    def admitted(
        self, flow: str, prompt_tokens: int, found: TierTokens, now: float, *, fetched: int = 0
    ) -> None:
        """Count the first start of a request."""
        self._windows.add(_QUERIED, prompt_tokens, now)
        self._windows.add(_HIT, found.total, now)
        self._windows.add(_FETCHED, fetched, now)
        counts = self._touch(flow)
        counts.requests += 1
        counts.prompt_tokens += prompt_tokens
        counts.cached_tokens += found.total
        self.found = self.found + found

    def computed(self, prompt_tokens: int, now: float) -> None:
        """Count computed tokens of a prompt."""
        self._windows.add(_COMPUTED, prompt_tokens, now)

    def generated(self, flow: str, tokens: int = 1) -> None:
        """Count sampled tokens."""
        self.generated_tokens += tokens
        self._touch(flow).generated_tokens += tokens

    def drafted(self, source: str, drafted: int, accepted: int) -> None:
        """Count a verified draft of `drafted` tokens, of which `accepted` were accepted."""
        before = self.drafts.get(source, DraftStats())
        self.drafts[source] = DraftStats(
            drafts=before.drafts + 1,
            drafted_tokens=before.drafted_tokens + drafted,
            accepted_tokens=before.accepted_tokens + accepted,
        )

    def windows(self, now: float) -> dict[str, WindowStats]:
        """Return the counters of each time window, by its name."""
        windows = {name: self._windows.window(s, now) for name, s in WINDOWS_S.items()}
        return windows | {"all": self._windows.total()}

    def total(self) -> WindowStats:
        """Return the counts of prompt tokens since the engine started."""
        return self._windows.total()

    def uptime(self, now: float) -> float:
        """Return the seconds since the engine started."""
        return now - self._started

    def flows(self, cache: PrefixCache) -> dict[str, FlowStats]:
        """Return the counters of each flow, including the cache's counters of its blocks."""
        owners, reuse_accounting = cache.capacity.owners(), cache.reuse_accounting
        retained = cache.survey.known.retained
        none, flows = OwnerUse(0, 0, 0), {}
        for name, counts in self._flows.items():
            own = owners.get(name, none)
            flows[name] = msgspec.structs.replace(
                counts,
                blocks_held=own.blocks_held,
                evictions_caused=own.evictions_caused,
                evictions_suffered=own.evictions_suffered,
                written_blocks=reuse_accounting.written(name),
                unread_blocks=reuse_accounting.unread(name),
                retained_blocks=retained[name],
            )
        return flows

    def _touch(self, flow: str) -> FlowStats:
        counts = self._flows.pop(flow, None)
        if counts is None:
            self._make_room()
            counts = FlowStats()
        self._flows[flow] = counts
        return counts

    def _make_room(self) -> None:
        others = self._flows.pop(OTHER_FLOWS, None)
        if len(self._flows) >= self._max_flows:
            others = others or FlowStats()
            _merge(others, self._flows.pop(next(iter(self._flows))))
        if others is not None:
            self._flows[OTHER_FLOWS] = others


def _merge(into: FlowStats, gone: FlowStats) -> None:
    for name in gone.__struct_fields__:
        setattr(into, name, getattr(into, name) + getattr(gone, name))


def _window_stats(sums: npt.NDArray[np.int64]) -> WindowStats:
    queried, hit, computed, fetched = (int(value) for value in sums)
    return WindowStats(
        queried_tokens=queried, hit_tokens=hit, fetched_tokens=fetched, computed_tokens=computed
    )
