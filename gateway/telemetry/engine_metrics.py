"""The engine's counters as Prometheus metrics.

No label names a tenant. `/admin/cache` shows each tenant's blocks.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import asdict
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.link.stats.engine_stats import DraftStats, EngineStats, ExchangeStats, SentinelStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DiskStats, PoolStats, StateStats, TierStats


class EngineCollector(Collector):
    """The engine's counters at one scrape. With several engines, these are sums."""

    def __init__(self, stats: EngineStats | None) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's metrics, or only `ratoon_engine_up` without an engine."""
        yield _gauge("ratoon_engine_up", "1 while an engine is connected", self._stats is not None)
        if self._stats is not None:
            yield from metrics_of(self._stats)


def metrics_of(stats: EngineStats) -> Iterator[Metric]:
    """Yield the metrics of one engine's counters."""
    yield from _engine(stats)
    yield from _gaps(stats.gaps)
    yield from _drafts(stats.drafts)
    yield from _pool(stats.pool)
    yield from _prefixes(stats)
    yield from _tiers(stats)
    yield from _states(stats.states)
    yield from _sentinel(stats.sentinel)
    yield from _moves(stats.tiers)
    yield from _exchange(stats.exchange)
    if stats.tiers.disk is not None:
        yield from _disk(stats.tiers.disk)


def _engine(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("ratoon_engine_uptime_seconds", "Since the engine started", stats.uptime_s)
    yield _gauge("ratoon_engine_running", "Sequences in the batch", stats.running)
    yield _gauge("ratoon_engine_waiting", "Sequences in the queue", stats.waiting)
    yield _counter(
        "ratoon_preemptions", "Sequences preempted for lack of blocks", stats.preemptions
    )
    yield _counter("ratoon_engine_steps", "Steps computed", stats.steps)
    yield _counter("ratoon_engine_generated_tokens", "Tokens sampled", stats.generated_tokens)
    yield _counter(
        "ratoon_engine_dropped_frames",
        "Messages to the engine that it could not read",
        stats.dropped_frames,
    )


def _gaps(gaps: GapStats) -> Iterator[Metric]:
    yield _gauge(
        "ratoon_engine_target_itl_seconds",
        "Target of the gaps between tokens that --target-itl-ms sets; 0: none",
        gaps.target_s,
    )
    kept = _counters(
        "ratoon_engine_token_gaps",
        "Gaps between tokens of requests with a target, by whether they met it",
        ["result"],
    )
    kept.add_metric(["kept"], gaps.gaps - gaps.late)
    kept.add_metric(["late"], gaps.late)
    yield kept
    yield _gauge(
        "ratoon_engine_target_itl_missed",
        "1 while more than a hundredth of the last minute's gaps were late, or while a step of one "
        "sequence takes longer than the target",
        gaps.is_missed or gaps.is_too_short,
    )


def _drafts(drafts: Mapping[str, DraftStats]) -> Iterator[Metric]:
    for name, text, field in (
        ("drafts", "Verified drafts, one for a row of a step, by source", "drafts"),
        ("drafted_tokens", "Tokens of these drafts", "drafted_tokens"),
        ("accepted_tokens", "Of these, tokens that were accepted", "accepted_tokens"),
    ):
        family = _counters(f"ratoon_engine_{name}", text, ["source"])
        for source, counted in sorted(drafts.items()):
            family.add_metric([source], getattr(counted, field))
        yield family


def _exchange(exchange: ExchangeStats) -> Iterator[Metric]:
    for name, text, field in (
        ("fetches", "Fetches from other engines, by transport", "fetches"),
        ("failed_fetches", "Of these, fetches that did not bring all available blocks", "failed"),
        ("fetched_blocks", "Blocks fetched from other engines", "blocks"),
        ("fetched_bytes", "Bytes of these blocks", "bytes"),
        ("fetch_seconds", "Seconds with at least one fetch under way", "seconds"),
    ):
        family = CounterMetricFamily(f"ratoon_engine_{name}", text, labels=["way"])
        for way, fetched in sorted(exchange.fetched.items()):
            family.add_metric([way], getattr(fetched, field))
        yield family
    yield _counter(
        "ratoon_engine_refused_fetches",
        "Fetches not begun, since computing was predicted to be faster or too many were under way",
        exchange.refused,
    )
    yield _counter(
        "ratoon_engine_sent_blocks", "Blocks sent to other engines", exchange.sent_blocks
    )
    yield _counter("ratoon_engine_sent_bytes", "Bytes of these blocks", exchange.sent_bytes)


def _pool(pool: PoolStats) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(
        "ratoon_pool_blocks", "Blocks of the device pool; the states add up to it", labels=["state"]
    )
    for state in ("free", "evictable", "leased"):
        blocks.add_metric([state], getattr(pool, state))
    yield blocks
    yield _gauge("ratoon_block_size_tokens", "Tokens of one block", pool.block_size)


def _prefixes(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("ratoon_tree_nodes", "Nodes of the radix tree", stats.tree_nodes)
    yield _gauge("ratoon_tree_depth", "Depth of the radix tree in nodes", stats.tree_depth)
    yield _gauge(
        "ratoon_retained_tokens",
        "Tokens of the prefixes that breakpoints retain",
        stats.pool.block_size * sum(flow.retained_blocks for flow in stats.flows.values()),
    )
    window = stats.windows.get("all")
    if window is None:
        return
    yield _counter("ratoon_prefix_queried_tokens", "Tokens looked up", window.queried_tokens)
    yield _counter("ratoon_prefix_hit_tokens", "Tokens found", window.hit_tokens)
    yield _counter("ratoon_prefix_computed_tokens", "Tokens computed", window.computed_tokens)


def _tiers(stats: EngineStats) -> Iterator[Metric]:
    tiers = stats.tiers
    found = _counters("ratoon_tier_hit_tokens", "Prompt tokens found, by tier", ["tier"])
    for tier, tokens in asdict(tiers.found).items():
        found.add_metric([tier], tokens)
    yield found
    blocks = GaugeMetricFamily(
        "ratoon_tier_blocks", "Blocks of the tiers below the device", labels=["tier", "state"]
    )
    loads = _counters(
        "ratoon_tier_loads_blocks",
        "Blocks found in lower tiers, by whether they were loaded",
        ["tier", "choice"],
    )
    for name, lower in tiers.lower.items():
        blocks.add_metric([name, "used"], lower.used)
        blocks.add_metric([name, "free"], lower.total - lower.used)
        loads.add_metric([name, "chosen"], lower.loads_chosen)
        loads.add_metric([name, "refused"], lower.loads_refused)
    yield blocks
    yield loads
    evictions = _counters(
        "ratoon_tier_evicted_blocks", "Copies evicted, by tier and reason", ["tier", "reason"]
    )
    for tier, reasons in tiers.evictions.items():
        for reason, count in reasons.items():
            evictions.add_metric([tier, reason], count)
    yield evictions
    yield _gauge(
        "ratoon_engine_loading", "Sequences that wait for their prefix to be loaded", stats.loading
    )
    yield _counter(
        "ratoon_failed_loads",
        "Sequences that started over because a load failed",
        stats.failed_loads,
    )


def _states(states: StateStats) -> Iterator[Metric]:
    slots = GaugeMetricFamily(
        "ratoon_state_slots",
        "State slots of a model with recurrent layers; the states add up to all slots",
        labels=["state"],
    )
    sequences = states.total - states.free - states.checkpoints
    for state, count in (
        ("free", states.free),
        ("sequences", sequences),
        ("checkpoints", states.checkpoints),
    ):
        slots.add_metric([state], count)
    yield slots
    below = GaugeMetricFamily(
        "ratoon_lower_states",
        "Checkpoints below the device, and free slots for them",
        labels=["tier", "state"],
    )
    for tier, use in states.lower.items():
        below.add_metric([tier, "checkpoints"], use.used)
        below.add_metric([tier, "free"], use.total - use.used)
    yield below
    for name, text, value in (
        ("made", "Checkpoints (recurrent states) added to the tree", states.made),
        ("hits", "Sequences that began from a checkpoint", states.hits),
        ("cut_tokens", "Matched tokens after the last checkpoint, not reused", states.cut_tokens),
        ("evicted", "Checkpoints evicted for another one", states.evicted),
        ("refused", "States not cached for lack of a slot", states.refused),
        ("copied_down", "Checkpoints copied to the host or to disk", states.copied_down),
        ("loaded", "Checkpoints copied back to the device", states.loaded),
        ("failed", "Failed copies of checkpoints", states.failed),
    ):
        yield _counter(f"ratoon_checkpoints_{name}", text, value)


def _sentinel(sentinel: SentinelStats) -> Iterator[Metric]:
    again = _counters(
        "ratoon_engine_checked_answers",
        "Answers to cached prompts chosen to be computed again without the cache, by result; a "
        "difference is a fault",
        ["result"],
    )
    agreed = sentinel.checked - sentinel.differed
    for result, count in (
        ("agreed", agreed),
        ("differed", sentinel.differed),
        ("dropped", sentinel.dropped),
    ):
        again.add_metric([result], count)
    yield again
    yield _counter("ratoon_engine_checked_tokens", "Tokens of these answers", sentinel.tokens)
    yield _counter(
        "ratoon_engine_damaged_blocks",
        "Blocks that changed in host memory, and were dropped",
        sentinel.damaged_blocks,
    )


def _moves(tiers: TierStats) -> Iterator[Metric]:
    ways = ["source", "target"]
    moved = _counters("ratoon_moved_bytes", "Bytes copied between tiers", ways)
    seconds = _counters("ratoon_move_seconds", "Seconds in which copies were under way", ways)
    failed = _counters("ratoon_failed_moves", "Blocks whose copy failed", ways)
    for way in tiers.ways:
        labels = [way.source, way.target]
        moved.add_metric(labels, way.blocks * tiers.block_bytes)
        seconds.add_metric(labels, way.seconds)
        failed.add_metric(labels, way.failed)
    yield from (moved, seconds, failed)


def _disk(disk: DiskStats) -> Iterator[Metric]:
    yield _gauge("ratoon_disk_up", "1 while the disk tier works", disk.state == "up")
    yield _gauge("ratoon_disk_bytes", "Size of the disk tier's file", disk.bytes)
    yield _gauge("ratoon_disk_records", "Blocks in the disk tier's file", disk.records)
    yield _counter("ratoon_disk_lost", "Records that failed their check when read", disk.lost)
    yield _gauge(
        "ratoon_disk_full",
        "1 while the disk tier writes nothing because its file system has too little left",
        disk.disk_full,
    )
    yield _counter("ratoon_disk_refused", "Writes that found no room", disk.refused)
    removed = "Times the disk tier's file was removed to make room for others on its file system"
    yield _counter("ratoon_disk_given_up", removed, disk.given_up)
    yield _counter("ratoon_disk_late", "Reads that missed their deadline", disk.late)
    yield _counter("ratoon_disk_quarantines", "Damaged files that were set aside", disk.quarantines)
    yield _counter("ratoon_disk_failures", "Deaths of the disk's process", disk.failures)


def _counters(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
