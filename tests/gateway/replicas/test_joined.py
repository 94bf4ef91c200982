"""Several engines' counters and views are merged like one engine's, and also shown alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace
from prometheus_client.parser import text_string_to_metric_families

from engine.link.interface import ReplicaHealth
from engine.link.query_messages import MarkedPrefix, MarkedPrefixes
from engine.link.stats.engine_stats import DraftStats, EngineStats, ExchangeStats, FetchStats
from engine.link.stats.flow_stats import EvictionStats, FlowShares, FlowStats, PinStats, ShareStats
from engine.link.stats.tier_stats import LowerStates, StateStats, TierTokens
from engine.link.view_messages import (
    NodeView,
    OwnerView,
    Prefixes,
    QueueUsage,
    Sequences,
    SequenceView,
    TierUsage,
    TreeLevel,
)
from gateway.admin.cache.cache_stats import cache_stats
from gateway.overview.health import health
from gateway.replicas.joined_stats import each_replica, joined_stats
from gateway.replicas.joined_views import (
    joined_marks,
    joined_overview,
    joined_prefixes,
    joined_roots,
    joined_sequences,
)
from gateway.telemetry.metrics import GatewayMetrics
from tests.gateway.support.operated_engine import (
    SOME_STATES,
    some_overview,
    some_stats,
    some_tiers,
)

READY = ReplicaHealth("ready", "")
DECODES = ReplicaHealth("ready", "", role="decode")
STATES = {"0": READY, "1": DECODES, "2": ReplicaHealth("absent", "no engine is connected")}


def eviction(age_s: float) -> EvictionStats:
    return EvictionStats(
        age_s=age_s, of_flow="a", for_flow="b", tier="host", reason="room", blocks=1
    )


def stats(**fields: Any) -> EngineStats:
    shares = {"a": FlowShares(tiers={"host": ShareStats(held=1, floor=2, ceiling=3, fair=4.0)})}
    some = some_stats(
        flows={"a": FlowStats(requests=2, prompt_tokens=10, cached_tokens=4)},
        tiers=replace(some_tiers(), prefill={256: 100.0}),
        shares=shares,
        evictions=[eviction(age_s) for age_s in (1.0, 3.0)],
        states=SOME_STATES,
    )
    pins = PinStats(most=9, claimed=2, pinned={"p": 2})
    fetched = {"tcp": FetchStats(fetches=2, failed=1, blocks=3, bytes=48, seconds=0.5)}
    exchange = ExchangeStats(fetched=fetched, refused=1, sent_blocks=4, sent_bytes=64)
    drafts = {"tree": DraftStats(drafts=2, drafted_tokens=7, accepted_tokens=5)}
    return replace(some, pins=pins, exchange=exchange, drafts=drafts, **fields)


def numbers(value: Any) -> list[float]:
    """Return all numbers in a value, in order."""
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_counts_are_added_and_sizes_are_not() -> None:
    one = stats()
    joined = joined_stats({"0": one, "1": stats(engine_id="engine-2")}, 3)
    same = (joined.pool.block_size, joined.tiers.block_bytes, joined.tree_depth, joined.uptime_s)
    assert same == (16, 10, 6, 12.5)
    assert joined.engine_id == "engine-1+engine-2"
    assert (joined.pins.most, joined.pins.pinned) == (18, {"p": 2})
    assert joined.tiers.prefill == {256: 100.0}
    assert [one.age_s for one in joined.evictions] == [1.0, 1.0, 3.0]
    assert joined.tiers.disk is not None
    assert joined.tiers.disk.state == "off"
    counts = ("windows", "flows", "shares", "exchange", "drafts", "states", "running", "steps")
    for name in (*counts, "dropped_frames"):
        alone, both = (numbers(msgspec.to_builtins(asdict(s)[name])) for s in (one, joined))
        assert both == [2 * number for number in alone], name
    for name in ("found", "lower", "ways", "evictions"):
        alone, both = (numbers(msgspec.to_builtins(getattr(s.tiers, name))) for s in (one, joined))
        assert both == [2 * number for number in alone], name
    assert each_replica(joined) == {"0": one, "1": stats(engine_id="engine-2")}
    assert each_replica(one) == {}


def test_what_only_one_engine_has_is_in_the_sum() -> None:
    bare = some_stats()
    for parts in ({"0": bare, "1": stats()}, {"0": stats(), "1": bare}):
        joined = joined_stats(parts, 0)
        assert joined.flows == stats().flows
        assert joined.tiers.lower == stats().tiers.lower
        assert joined.tiers.disk == stats().tiers.disk


def test_the_operator_sees_the_sums_and_each_engine_also_one_that_is_away() -> None:
    joined = joined_stats({"0": stats(), "1": stats(engine_id="engine-2", running=5)}, 0)
    shown = cache_stats(joined, {"a": "acme"}, STATES)
    assert shown.queue.running == 8
    assert [(one.name, one.state) for one in shown.replicas] == [
        ("0", "ready"),
        ("1", "ready"),
        ("2", "absent"),
    ]
    first, second, third = (one.counted for one in shown.replicas)
    assert (first and first.queue.running, second and second.queue.running) == (3, 5)
    assert (third, shown.replicas[2].reason) == (None, "no engine is connected")
    assert cache_stats(stats(), {}).replicas == [], "one engine alone is not listed"


def samples(text: str) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_keep_their_names_as_sums_and_each_replica_has_its_own() -> None:
    metrics = GatewayMetrics()
    joined = joined_stats({"0": stats(), "1": stats(running=5)}, 0)
    found = samples(metrics.render(joined, STATES).decode())
    assert found["ratoon_engine_running[]"] == 8
    for number, running in ("0", 3), ("1", 5):
        assert found[f"ratoon_replica_running[('replica', '{number}')]"] == running
        steps = f"ratoon_replica_steps_total[('replica', '{number}')]"
        assert found[steps] == 600
        free = f"ratoon_replica_pool_blocks[('replica', '{number}'), ('state', 'free')]"
        assert found[free] == 60
    ups = [found[f"ratoon_replica_up[('replica', '{number}')]"] for number in "012"]
    assert ups == [1, 1, 0]
    assert b"ratoon_replica" not in metrics.render(stats())
    metrics.routing.moved("1")
    moved = samples(metrics.render(None, STATES).decode())
    assert moved["ratoon_requests_moved_total[('replica', '1')]"] == 1


def test_an_overview_adds_up_and_lists_what_is_largest() -> None:
    def seen(flow: str, blocks: int, engine_id: str) -> Any:
        owners = [OwnerView(flow, blocks, 1, 2), OwnerView("both", 3, 1, 2)]
        tier = TierUsage(tier="device", total=100, used=50, owners=owners, num_owners=2)
        return some_overview(
            engine_id=engine_id,
            found=TierTokens(1, 2, 3),
            waiting=4,
            tiers=[tier],
            queue=[QueueUsage("both", 1, 2), QueueUsage(flow, blocks, 0)],
            evictions=[eviction(float(blocks))],
            disk=some_tiers().disk,
            states=StateStats(
                total=60, checkpoints=blocks, lower={"host": LowerStates(total=9, used=1)}
            ),
        )

    joined = joined_overview({"0": seen("x", 1, "e1"), "1": seen("y", 5, "e2")}, 2, 1)
    assert (joined.engine_id, joined.found, joined.waiting) == ("e1+e2", TierTokens(2, 4, 6), 8)
    below = {"host": LowerStates(total=18, used=2)}
    assert joined.states == StateStats(total=120, checkpoints=6, lower=below)
    (tier,) = joined.tiers
    assert (tier.total, tier.used, tier.num_owners) == (200, 100, 3)
    assert tier.owners == [OwnerView("both", 6, 2, 4), OwnerView("y", 5, 1, 2)]
    assert joined.queue == [QueueUsage("both", 2, 4), QueueUsage("y", 5, 0)]
    assert [one.age_s for one in joined.evictions] == [1.0]
    found = {
        one.process: one
        for one in health(
            joined, (), is_stalled=False, workers=[], silent=[], now=100.0, replicas=STATES
        )
    }
    assert list(found) == ["engine 0", "disk 0", "engine 1", "disk 1", "engine 2"]
    assert (found["engine 0"].ok, found["engine 0"].detail) == (
        True,
        "engine e1: 0 running, 4 waiting",
    )
    assert "(decode)" in found["engine 1"].detail
    assert (found["engine 2"].ok, found["engine 2"].detail) == (False, "no engine is connected")


def test_sequences_are_the_oldest_of_all() -> None:
    def some(*ages: float) -> Sequences:
        views = [SequenceView(f"r{age}", "a", "decode", age, 1, 1, 1) for age in ages]
        return Sequences(query_id="", total=10, sequences=views)

    joined = joined_sequences({"0": some(5.0, 1.0), "1": some(4.0, 3.0)}, 3)
    assert [one.age_s for one in joined.sequences] == [5.0, 4.0, 3.0]
    assert joined.total == 20


def node(name: str, *, hits: int = 0, tokens: int = 16, device: int = 1) -> NodeView:
    return NodeView(
        node=name, parent="p", namespace=b"n", flow="a", tokens_before=0, tokens=tokens,
        device=device, host=0, disk=0, hits=hits, last_used_s=0.0, children=0,
    )  # fmt: skip


@pytest.mark.parametrize(("order", "first"), [("hot", "hit"), ("wasteful", "large")])
def test_prefixes_keep_their_order(order: Any, first: str) -> None:
    def listed(*nodes: NodeView, age_s: float | None = 1.0) -> Prefixes:
        return Prefixes(query_id="", prefixes=list(nodes), surveyed=5, nodes=7, age_s=age_s)

    one, other = listed(node("hit", hits=9)), listed(node("large", device=4), age_s=2.0)
    joined = joined_prefixes({"0": one, "1": other}, order, 1)
    assert [found.node for found in joined.prefixes] == [first]
    assert (joined.surveyed, joined.nodes, joined.age_s) == (10, 14, 2.0)
    assert joined_prefixes({"0": one, "1": listed(age_s=None)}, order, 1).age_s is None


def test_namespaces_of_all_are_listed_the_largest_first() -> None:
    def roots(*sizes: int, more: int = 0) -> TreeLevel:
        children = [node(str(size), device=size) for size in sizes]
        return TreeLevel(query_id="", is_known=True, children=children, more=more)

    joined = joined_roots({"0": roots(1, 5), "1": roots(3, more=2)}, 2)
    assert [one.node for one in joined.children] == ["5", "3"]
    assert joined.more == 3


def test_a_marked_prefix_is_shown_once_where_most_of_it_is() -> None:
    def mark(name: bytes, device: int, left: float) -> MarkedPrefix:
        return MarkedPrefix(name, 64, TierTokens(device), 300.0, left)

    joined = joined_marks(
        {
            "0": MarkedPrefixes(
                query_id="", prefixes=[mark(b"x", 16, 200.0), mark(b"y", 64, 100.0)]
            ),
            "1": MarkedPrefixes(query_id="", prefixes=[mark(b"x", 64, 290.0)]),
        }
    )
    assert joined.prefixes == [mark(b"x", 64, 290.0), mark(b"y", 64, 100.0)]
