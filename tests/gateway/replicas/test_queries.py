"""Queries to all replicas: which are asked, which replies count, and the cost of an absent
replica.
"""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import numpy as np
import pytest
from msgspec.structs import replace

from engine.errors import (
    AdapterNotServed,
    EngineUnavailable,
    InvalidRequest,
    NoRoomToPin,
    NotCarried,
)
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    ReadPrefix,
    WriteImport,
)
from engine.link.messages import FlowQuota, pack_token_ids
from engine.link.query import Query, reply_type
from engine.link.query_messages import (
    AdapterRead,
    DropAdapter,
    Flush,
    ForgetMarked,
    ListMarked,
    MarkedPrefix,
    Pin,
    Probe,
    QueryMessage,
    ReadAdapter,
    StatsQuery,
    Unpin,
)
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import (
    OverviewQuery,
    PrefixesQuery,
    SequencesQuery,
    TreeLevel,
    TreeQuery,
)
from gateway.replicas import fan_out
from gateway.replicas.joined_stats import each_replica
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.engine.rigs.rig import NAMESPACE
from tests.gateway.replicas.rig import Fleet, asking, prompt

PATH = NamespacePath.single(NAMESPACE)
IDS = np.array(prompt() * 3, np.int32)
PIN = Pin(
    pin_id="pin",
    token_ids=pack_token_ids(IDS[:48]),
    namespace=NAMESPACE,
    block_keys=block_keys(PATH, IDS[:48], 16),
)
BEGIN = BeginImport(
    import_id="im",
    token_ids=pack_token_ids(range(16)),
    namespace=bytes(16),
    block_keys=bytes(16),
    unit_bytes=16,
    state_units=0,
)
PROBE = Probe(token_ids=pack_token_ids(IDS), namespaces=PATH.spans)


async def test_quotas_reach_all_also_those_that_come_later() -> None:
    fleet = Fleet()
    fleet["b"].die()
    fleet.set.partition({"t": FlowQuota(0.5)})
    assert [one.flows for one in fleet.replicas] == [{"t": FlowQuota(0.5)}] * 3


async def test_a_prefix_is_pinned_everywhere_and_a_new_engine_makes_it_asked_for_again() -> None:
    fleet = Fleet()
    assert (await fleet.set.ask(PIN)).blocks == 3
    assert [one.pinned for one in fleet.replicas] == [{"pin": 3}] * 3
    before = fleet.set.welcome
    fleet["c"].die()
    away = fleet.set.welcome
    fleet["c"].come()
    after = fleet.set.welcome
    ids = {seen.engine_id for seen in (before, away, after) if seen is not None}
    assert len(ids) == 3
    assert (await fleet.set.ask(PIN)).blocks == 3, "idempotent where it is pinned"
    assert (await fleet.set.ask(Unpin(pin_id="pin"))).blocks == 3
    assert [one.pinned for one in fleet.replicas] == [{}] * 3


async def test_a_refusal_of_one_is_told_and_one_that_is_away_is_not() -> None:
    fleet = Fleet()
    fleet["a"].pin_error = EngineUnavailable("it died")
    assert (await fleet.set.ask(PIN)).blocks == 3
    fleet["a"].pin_error = NoRoomToPin("full")
    with pytest.raises(NoRoomToPin):
        await fleet.set.ask(PIN)
    assert fleet["c"].pinned == {"pin": 3}, "the others have it all the same"


async def test_a_probe_tells_what_the_best_one_has() -> None:
    fleet = Fleet()
    await fleet["b"].ask(PIN)
    found = await fleet.set.ask(PROBE)
    assert found.tiers == TierTokens(48)
    fleet["b"].die()
    assert (await fleet.set.ask(PROBE)).tiers == TierTokens(0)


async def test_a_flush_is_an_error_where_one_is_away_and_done_in_the_others() -> None:
    fleet = Fleet()
    await fleet.set.ask(PIN)
    assert (await fleet.set.ask(Flush())).blocks == 9
    await fleet.set.ask(PIN)
    fleet["b"].die()
    with pytest.raises(EngineUnavailable, match=r"replica b \(no engine is connected\)"):
        await fleet.set.ask(Flush())
    assert (await fleet.set.ask(PROBE)).tiers.total == 0


async def test_marked_prefixes_are_of_all_and_are_forgotten_in_all() -> None:
    fleet = Fleet()
    mark = MarkedPrefix(b"x", 32, TierTokens(32), 60.0, 30.0)
    fleet["a"].marks = {"t": {b"x": mark}}
    fleet["c"].marks = {"t": {b"x": replace(mark, tiers=TierTokens(16))}}
    assert (await fleet.set.ask(ListMarked(flow="t"))).prefixes == [mark]
    forget = ForgetMarked(flow="t", prefix_id=b"x")
    assert (await fleet.set.ask(forget)).blocks == 2
    assert (await fleet.set.ask(forget)).blocks is None
    assert (await fleet.set.ask(ListMarked(flow="t"))).prefixes == []
    copies = {name: fleet[name].forgotten_copies for name in "abc"}
    assert copies == {"a": [], "b": [("t", b"x")], "c": []}, "asked again where it was not marked"


async def test_a_node_is_looked_for_where_it_is() -> None:
    fleet = Fleet()

    async def knows_its_own(query: Any) -> TreeLevel:
        return TreeLevel(query_id="", is_known=query.node == "of-c")

    fleet["c"].answer = knows_its_own  # type: ignore[method-assign]
    assert (await fleet.set.ask(TreeQuery(node="of-c", limit=10))).is_known
    assert not (await fleet.set.ask(TreeQuery(node="of-nobody", limit=10))).is_known
    assert (await fleet.set.ask(TreeQuery(node=None, limit=10))).is_known


async def test_one_that_hangs_costs_its_part_of_the_answer() -> None:
    fleet = Fleet()
    hangs = asyncio.Event()

    async def hanging(_: object) -> None:
        await hangs.wait()

    fleet["b"].answer = hanging  # type: ignore[method-assign, assignment]
    answers = await fan_out.ask_each(fleet.set._members.serving(), StatsQuery(), 0.01)
    assert isinstance(answers["b"], EngineUnavailable)
    assert [name for name, one in answers.items() if one is not answers["b"]] == ["a", "c"]
    fleet["b"].die()
    assert list(each_replica((await fleet.set.ask(StatsQuery())).stats)) == ["a", "c"]
    for name in "ac":
        fleet[name].die()
    with pytest.raises(EngineUnavailable):
        await fleet.set.ask(StatsQuery())
    assert fleet.set.welcome is None


async def test_an_error_that_all_have_is_the_answer() -> None:
    fleet = Fleet()

    async def refusing(_: object) -> None:
        raise InvalidRequest("no ids")

    for one in fleet.replicas:
        one.answer = refusing  # type: ignore[method-assign, assignment]
    with pytest.raises(InvalidRequest):
        await fleet.set.ask(PROBE)


async def test_a_refused_engine_is_flushed_and_neither_counted_nor_pinned_in() -> None:
    fleet = Fleet()
    stranger = fleet["b"]
    stranger.fingerprint = b"other"
    assert fleet.set.welcome is not None
    stranger.die()
    stranger.come()
    await fleet.set.ask(PIN)
    assert stranger.pinned == {}
    assert list(each_replica((await fleet.set.ask(StatsQuery())).stats)) == ["a", "c"]
    async with asking(fleet):
        pass
    assert (await fleet.set.ask(Flush())).blocks == 6


async def test_the_replies_to_each_query_become_one_of_its_kind() -> None:
    asked: list[Query[Any]] = [
        StatsQuery(),
        OverviewQuery(),
        SequencesQuery(limit=1),
        TreeQuery(node=None, limit=1),
        PrefixesQuery(order="hot", limit=1),
        Flush(),
        PIN,
        Unpin(pin_id="pin"),
        PROBE,
        ListMarked(flow="t"),
        ForgetMarked(flow="t", prefix_id=b"x"),
        ReadAdapter(path="a"),
        DropAdapter(digest=bytes(32), flow="t"),
        ReadPrefix(pin_id="px"),
        BEGIN,
        WriteImport(import_id="im", first=0, payload=b"unit"),
        EndImport(import_id="im"),
    ]
    assert {type(query) for query in asked} == set(get_args(QueryMessage))
    for query in asked:
        assert isinstance(await Fleet().set.ask(query), reply_type(type(query)))


async def test_a_prefix_is_read_from_one_and_imported_into_all() -> None:
    fleet = Fleet()

    async def without(_: object) -> None:
        raise NotCarried("the prefix is not pinned")

    fleet["a"].answer = without  # type: ignore[method-assign, assignment]
    assert (await fleet.set.ask(ReadPrefix(pin_id="px"))).blocks == 1
    with pytest.raises(NotCarried):
        await fleet.set.ask(BEGIN)
    for name in "bc":
        fleet[name].answer = without  # type: ignore[method-assign, assignment]
    with pytest.raises(NotCarried):
        await fleet.set.ask(ReadPrefix(pin_id="px"))

    async def later(_: object) -> ImportState:
        return ImportState(query_id="", is_ready=False)

    fleet = Fleet()
    assert (await fleet.set.ask(BEGIN)).is_ready
    fleet["b"].answer = later  # type: ignore[method-assign, assignment]
    assert not (await fleet.set.ask(BEGIN)).is_ready


async def test_an_adapter_is_served_where_all_engines_have_the_same() -> None:
    fleet = Fleet()
    assert (await fleet.set.ask(ReadAdapter(path="a"))).rank == 8
    assert (await fleet.set.ask(DropAdapter(digest=bytes(32), flow="t"))).blocks == 6

    async def another(_: object) -> AdapterRead:
        return AdapterRead(query_id="", digest=b"another".ljust(32), rank=8)

    fleet["b"].answer = another  # type: ignore[method-assign, assignment]
    with pytest.raises(AdapterNotServed, match="different"):
        await fleet.set.ask(ReadAdapter(path="a"))

    async def refusing(_: object) -> None:
        raise AdapterNotServed("use_dora is set")

    fleet["b"].answer = refusing  # type: ignore[method-assign, assignment]
    with pytest.raises(AdapterNotServed, match="use_dora"):
        await fleet.set.ask(ReadAdapter(path="a"))
