"""The queries to all replicas, and the joining of their answers.

| query | asked replicas | answer |
|--|--|--|
| stats, overview, sequences, prefixes, tree | serving | joined (`joined_*`) |
| probe | serving | the answer of the replica that has most of the prompt |
| pin | ready, once each has fetched the prefix | one replica's blocks; a refusal is raised |
| unpin, marked prefixes | serving | joined, each prefix once |
| forget a marked prefix | serving; then the replicas that have it unmarked | one replica's |
| read an adapter | serving | one replica's; an error if one refuses it or reads another |
| drop an adapter | serving | the sum |
| read a pinned prefix | serving, one after the other | the first replica's that has it |
| import a prefix | serving | all replicas'; an error if one refuses it |
| flush | connected | the sum; an error if one could not be flushed |

A probe shows the cached part of a prompt, but not the replica of the next request. That replica
also depends on the running requests. The set's `engine_id` changes with a new replica.
`gateway.sharing.pinning` then asks the replica for all pins.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from engine.errors import AdapterNotServed, EngineDied, EngineError, EngineUnavailable
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.erasure import Erasure
from engine.link.gateway_end.in_time import in_time
from engine.link.interface import ANSWER_S
from engine.link.query import Query, R
from engine.link.query_messages import (
    AdapterDropped,
    AdapterRead,
    DropAdapter,
    Flush,
    Flushed,
    ForgetMarked,
    ListMarked,
    MarkedForgotten,
    Pin,
    Pinned,
    Probe,
    ReadAdapter,
    StatsQuery,
    StatsReply,
    Unpin,
)
from engine.link.view_messages import (
    OverviewQuery,
    PrefixesQuery,
    SequencesQuery,
    TreeLevel,
    TreeQuery,
)
from gateway.replicas.fan_out import WITHIN_S, ask_all, ask_each, first_error
from gateway.replicas.first_fetches import FirstFetches
from gateway.replicas.joined_stats import joined_stats
from gateway.replicas.joined_views import (
    joined_marks,
    joined_overview,
    joined_prefixes,
    joined_roots,
    joined_sequences,
)
from gateway.replicas.members import Members

# seconds to wait for answers when asking again; a replica that hangs now flushes when it continues
AGAIN_S = 1.0


class NotAllFlushed(EngineUnavailable):
    """The error of a flush that some replicas `missed` (the reasons, by replica name).

    `blocks` and `erased` count the blocks that the other replicas dropped.
    """

    def __init__(
        self,
        blocks: int,
        missed: Mapping[str, str],
        replicas: int,
        erased: Mapping[str, Erasure],
    ) -> None:
        names = ", ".join(f"replica {name} ({why})" for name, why in missed.items())
        others = "" if len(missed) == replicas else "; the others were"
        super().__init__(f"not flushed: {names}{others}")
        self.blocks = blocks
        self.missed = missed
        self.erased = erased


def _joined_stats(query: StatsQuery, found: Mapping[str, StatsReply]) -> StatsReply:
    each = {name: one.stats for name, one in found.items()}
    return StatsReply(query_id="", stats=joined_stats(each, query.evictions))


_JOINED: Mapping[type[Query[Any]], Callable[[Any, Any], Any]] = {
    StatsQuery: _joined_stats,
    OverviewQuery: lambda query, found: joined_overview(found, query.owners, query.evictions),
    SequencesQuery: lambda query, found: joined_sequences(found, query.limit),
    TreeQuery: lambda query, found: joined_roots(found, query.limit),
    PrefixesQuery: lambda query, found: joined_prefixes(found, query.order, query.limit),
    Probe: lambda _, found: max(found.values(), key=lambda one: one.tiers.total),
    Unpin: lambda _, found: max(found.values(), key=lambda one: one.blocks),
    ListMarked: lambda _, found: joined_marks(found),
    DropAdapter: lambda _, found: AdapterDropped(
        query_id="", blocks=sum(one.blocks for one in found.values())
    ),
}
"""For each type of query, a function that joins the serving replicas' replies to one reply."""


class ReplicaQueries:
    """The queries of one gateway process to its replicas. Used in one event loop."""

    def __init__(self, members: Members, first_fetches: FirstFetches) -> None:
        self._members = members
        self._first_fetches = first_fetches

    async def ask(self, query: Query[R], within_s: float | None = ANSWER_S) -> R:
        """Return the replicas' reply to a query, by the table in the module's docstring."""
        return cast("R", await in_time(self._answer(query), within_s))

    async def _answer(self, query: Query[Any]) -> object:
        match query:
            case Flush():
                return await self._flush(query)
            case Pin():
                return await self._pin(query)
            case ReadAdapter():
                return await self._read_adapter(query)
            case ForgetMarked():
                return await self._forget(query)
            case ReadPrefix():
                return await self._read_prefix(query)
            case BeginImport() | WriteImport() | EndImport():
                return await self._import(query)
            case TreeQuery(node=str()):
                return await self._below(query)
        return _JOINED[type(query)](query, await ask_all(self._members.serving(), query))

    async def _below(self, query: TreeQuery) -> TreeLevel:
        for engine in self._members.serving().values():
            if (level := await engine.ask(query, None)).is_known:
                return level
        return TreeLevel(query_id="", is_known=False)

    async def _flush(self, query: Flush) -> Flushed:
        """Flush every replica, and return the sum of the flushed blocks.

        Raises NotAllFlushed, after the other replicas have been flushed, if a replica is away. The
        blocks on its disk come back with the replica, unless the flush is recorded.
        """
        answers = await ask_each(self._members.connected(), query, WITHIN_S)
        missed = {
            name: "no engine is connected" for name in self._members.engines if name not in answers
        }
        flushed, erased = 0, dict[str, Erasure]()
        for name, answer in answers.items():
            if isinstance(answer, EngineError):
                missed[name] = answer.message
                continue
            flushed += answer.blocks
            if answer.erasure is not None:
                erased[name] = answer.erasure
        if missed:
            raise NotAllFlushed(flushed, missed, len(self._members.engines), erased)
        return Flushed(query_id="", blocks=flushed, replicas=erased)

    async def _pin(self, query: Pin) -> Pinned:
        """Pin a prefix in every ready replica; return one replica's reply.

        A replica without the prefix first fetches it from another replica, if that is faster than
        computing. Raises the first refusal, after all have answered. Replicas that die meanwhile
        are ignored.
        """
        ready = {name: self._members.engines[name] for name in self._members.ready()}
        await self._first_fetches.fetch([*ready], query)
        answers = await ask_each(ready, query)
        away = (EngineUnavailable, EngineDied)
        for answer in answers.values():
            if isinstance(answer, EngineError) and not isinstance(answer, away):
                raise answer
        pinned = [one for one in answers.values() if not isinstance(one, EngineError)]
        if not pinned:
            raise first_error(answers)
        return max(pinned, key=lambda one: one.blocks)

    async def _read_adapter(self, query: ReadAdapter) -> AdapterRead:
        answers = await ask_each(self._members.serving(), query)
        read = [one for one in answers.values() if not isinstance(one, EngineError)]
        if not read or len(read) < len(answers):
            raise first_error(answers)
        if len({one.digest for one in read}) > 1:
            raise AdapterNotServed("the engines have different adapters at this path")
        return read[0]

    async def _read_prefix(self, query: ReadPrefix) -> PrefixUnits:
        errors: dict[str, EngineError] = {}
        for name, engine in self._members.serving().items():
            try:
                return await engine.ask(query)
            except EngineError as error:
                errors[name] = error
        raise first_error(errors)

    async def _import(self, query: BeginImport | WriteImport | EndImport) -> ImportState:
        answers = await ask_each(self._members.serving(), query)
        done = [one for one in answers.values() if not isinstance(one, EngineError)]
        if not done or len(done) < len(answers):
            raise first_error(answers)
        return ImportState(query_id="", is_ready=all(one.is_ready for one in done))

    async def _forget(self, query: ForgetMarked) -> MarkedForgotten:
        """Forget a marked prefix in every replica, and return the reply with the most blocks.

        If one replica has the prefix marked, the others also forget their unmarked blocks of it.
        These blocks were computed for a request without a mark, fetched, or read from a disk.
        Otherwise requests would find them, and the first replica could fetch them.
        """
        serving = self._members.serving()
        found = await ask_all(serving, query)
        had = {name for name, one in found.items() if one.blocks is not None}
        if had:
            others = {name: one for name, one in serving.items() if name not in had}
            await ask_each(others, replace(query, is_marked=False), AGAIN_S)
        return max(found.values(), key=lambda one: -1 if one.blocks is None else one.blocks)
