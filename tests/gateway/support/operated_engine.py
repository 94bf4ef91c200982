"""An engine double as the operator sees it: connected or not, with counters and flushes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from engine.errors import EngineError, EngineUnavailable
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.erasure import Erasure
from engine.link.event_messages import Finished, Tokens
from engine.link.gateway_end.in_time import in_time
from engine.link.interface import ANSWER_S, OnEnd, ReplicaHealth
from engine.link.messages import FlowQuota, Generate, Welcome
from engine.link.query import Query, R
from engine.link.query_messages import (
    AdapterDropped,
    AdapterRead,
    DropAdapter,
    Flush,
    Flushed,
    Pin,
    Pinned,
    ReadAdapter,
    StatsQuery,
    StatsReply,
    Unpin,
    Unpinned,
)
from engine.link.stats.engine_stats import EngineStats, WindowStats
from engine.link.stats.flow_stats import EvictionStats, FlowShares, FlowStats, PinStats
from engine.link.stats.tier_stats import (
    DirectionStats,
    DiskStats,
    LowerStates,
    LowerTierStats,
    PoolStats,
    StateStats,
    TierStats,
    TierTokens,
)
from engine.link.view_messages import (
    Overview,
    OverviewQuery,
    Prefixes,
    PrefixesQuery,
    Sequences,
    SequencesQuery,
    SequenceView,
    TreeLevel,
    TreeQuery,
)

WELCOME = Welcome(
    engine_id="engine-1",
    fingerprint=bytes(range(16)),
    vocab_size=512,
    block_size=16,
    max_model_len=4096,
    eos_token_ids=(0,),
    device="cpu",
    dtype="float32",
)


def some_tiers() -> TierStats:
    """Make tier statistics in which all numbers differ."""
    way = DirectionStats(
        source="host", target="device", blocks=3, failed=1, seconds=0.5, under_way=0
    )
    return TierStats(
        block_bytes=10,
        found=TierTokens(device=1, host=2, disk=3),
        lower={"host": LowerTierStats(total=9, used=4, loads_chosen=5, loads_refused=6)},
        ways=[way],
        evictions={"host": {"no_room": 7}},
        disk=DiskStats(
            state="off",
            bytes=1,
            records=2,
            lost=3,
            refused=4,
            late=5,
            quarantines=6,
            failures=7,
            disk_full=True,
            given_up=8,
        ),
    )


SOME_STATES = StateStats(total=9, lower={"host": LowerStates(total=3, used=1)})


def some_stats(
    flows: dict[str, FlowStats] | None = None,
    tiers: TierStats | None = None,
    shares: dict[str, FlowShares] | None = None,
    evictions: list[EvictionStats] | None = None,
    states: StateStats = StateStats(),  # noqa: B008 (frozen)
) -> EngineStats:
    return EngineStats(
        engine_id="engine-1",
        fingerprint=bytes(range(16)),
        states=states,
        uptime_s=12.5,
        running=3,
        waiting=4,
        preemptions=5,
        steps=600,
        dropped_frames=8,
        generated_tokens=700,
        windows={
            "1m": WindowStats(queried_tokens=0, hit_tokens=0, computed_tokens=0),
            "10m": WindowStats(queried_tokens=100, hit_tokens=75, computed_tokens=25),
            "all": WindowStats(queried_tokens=1000, hit_tokens=250, computed_tokens=750),
        },
        pool=PoolStats(block_size=16, total=100, free=60, used=40, evictable=30, leased=10),
        tree_nodes=21,
        tree_depth=6,
        flows=flows or {},
        tiers=tiers or TierStats(),
        shares=shares or {},
        floors_scale={"device": 1.0},
        evictions=evictions or [],
    )


def some_overview(**fields: Any) -> Overview:
    """Make the overview of an idle engine, changed by `fields`."""
    counts: dict[str, Any] = {
        "query_id": "",
        "engine_id": "engine-1",
        "uptime_s": 12.5,
        "found": TierTokens(),
        "computed_tokens": 0,
        "generated_tokens": 0,
        "waiting": 0,
        "running": 0,
        "loads_chosen": 0,
        "loads_refused": 0,
    }
    return Overview(**(counts | fields))


class OperatedEngine:
    """An `engine.link.interface.Engine` that records flush orders in `flushes`."""

    def __init__(self) -> None:
        self.connected = True
        self.is_stalled = False
        self.handshake_error: str | None = None
        self.replicas: dict[str, ReplicaHealth] = {}
        self.router_answers: bool | None = None
        self.hangs = False
        self.counters = some_stats()
        self.seen = some_overview()
        self.overview_asks: list[tuple[int, int]] = []
        self.levels: dict[str | None, TreeLevel] = {}
        self.listed = Prefixes(query_id="", prefixes=[], surveyed=0, nodes=0, age_s=0.0)
        self.prefix_asks: list[tuple[str, int]] = []
        self.alive: list[SequenceView] = []
        self.flushes: list[str | None] = []
        self.erasure: Erasure | None = None
        self.unit = b"unit of sixteen."
        self.imports: list[BeginImport | WriteImport | EndImport] = []
        self.import_error: EngineError | None = None
        self.pinned: dict[str, int] = {}
        self.flows: dict[str, FlowQuota] | None = None
        self.recorded: dict[str, str | None] = {}  # flushes by id, as recorded in the state
        self.pin_error: EngineError | None = None

    @property
    def welcome(self) -> Welcome | None:
        return WELCOME if self.connected else None

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        raise EngineUnavailable("This engine generates nothing.")
        yield

    async def ask(self, query: Query[R], within_s: float | None = ANSWER_S) -> R:
        return cast("R", await in_time(self._answer(query), within_s))

    async def _answer(self, query: Query[Any]) -> object:
        if self.hangs:
            await asyncio.Event().wait()
        if not self.connected:
            raise EngineUnavailable("No engine is connected.", retry_after_s=2.0)
        match query:
            case StatsQuery():
                pins = PinStats(most=8, claimed=sum(self.pinned.values()), pinned=dict(self.pinned))
                return StatsReply(query_id="", stats=replace(self.counters, pins=pins))
            case OverviewQuery():
                self.overview_asks.append((query.owners, query.evictions))
                return self.seen
            case SequencesQuery():
                listed = self.alive[: query.limit]
                return Sequences(query_id="", total=len(self.alive), sequences=listed)
            case TreeQuery(node=node):
                return self.levels.get(node, TreeLevel(query_id="", is_known=node is None))
            case PrefixesQuery():
                self.prefix_asks.append((query.order, query.limit))
                return self.listed
            case Flush():
                self.flushes.append(query.flow)
                return Flushed(query_id="", blocks=7, erasure=self.erasure)
            case ReadPrefix():
                blocks = self.pinned.get(query.pin_id, 0)
                payload = self.unit * query.count
                return PrefixUnits(
                    query_id="", unit_bytes=len(self.unit), blocks=blocks, payload=payload
                )
            case BeginImport() | WriteImport() | EndImport():
                self.imports.append(query)
                if self.import_error is not None and isinstance(query, BeginImport):
                    raise self.import_error
                return ImportState(query_id="")
            case Pin():
                if self.pin_error is not None:
                    raise self.pin_error
                blocks = self.pinned[query.pin_id] = len(query.block_keys) // 16
                return Pinned(query_id="", blocks=blocks)
            case ReadAdapter():
                return AdapterRead(query_id="", digest=bytes(32), rank=8, num_bytes=1024)
            case DropAdapter():
                return AdapterDropped(query_id="", blocks=3)
            case Unpin():
                return Unpinned(query_id="", blocks=self.pinned.pop(query.pin_id, 0))
        raise AssertionError(query)

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        self.recorded = dict(flushes)

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        self.flows = dict(flows)
