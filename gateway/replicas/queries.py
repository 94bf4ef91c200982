"""What is asked of all replicas, and how their answers become one.

| asked | of | the answer |
|--|--|--|
| stats, overview, sequences, prefixes, tree | those that serve | joined (`joined_*`) |
| probe | those that serve | that of the replica that has most of the prompt |
| pin | those that are ready, once they have fetched it | the blocks of one; a refusal is raised |
| unpin, marked prefixes | those that serve | together, a prefix once |
| forget a marked prefix | those that serve; then those of them that have it unmarked | of one |
| flush | all that are connected | the sum; an error where one could not be flushed |

A probe tells what is cached, not where the next request is sent: that depends on what others have
under way. A new replica is asked for all pins by whoever keeps them, since the set's `engine_id`
changes with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import EngineDied, EngineError, EngineUnavailable
from engine.link.interface import PinnedPrefix
from engine.link.query_messages import UNRECORDED, MarkedPrefix, Probed
from engine.link.stats_messages import EngineStats
from engine.link.view_messages import Overview, Prefixes, PrefixOrder, Sequences, TreeLevel
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

AGAIN_S = 1.0  # for a second round; whoever stands still does it when it goes on


class NotAllFlushed(EngineUnavailable):
    """Some replicas were away: `missed` has why, by name. `blocks` are those of the others."""

    def __init__(self, blocks: int, missed: Mapping[str, str], replicas: int) -> None:
        names = ", ".join(f"replica {name} ({why})" for name, why in missed.items())
        others = "" if len(missed) == replicas else "; the others were"
        super().__init__(f"not flushed: {names}{others}")
        self.blocks = blocks
        self.missed = missed


class ReplicaQueries:
    """The queries of one gateway process. For one event loop."""

    def __init__(self, members: Members, first_fetches: FirstFetches) -> None:
        self._members = members
        self._first_fetches = first_fetches

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        """Each one's counters, and their sums."""
        return joined_stats(
            await ask_all(self._members.serving(), lambda one: one.stats(evictions=evictions)),
            evictions,
        )

    async def overview(self, *, owners: int = 0, evictions: int = 0) -> Overview:
        """Each one's counters, and their sums; what is largest in any of them."""
        found = await ask_all(
            self._members.serving(), lambda one: one.overview(owners=owners, evictions=evictions)
        )
        return joined_overview(found, owners, evictions)

    async def sequences(self, limit: int) -> Sequences:
        """The oldest of all."""
        return joined_sequences(
            await ask_all(self._members.serving(), lambda one: one.sequences(limit)), limit
        )

    async def tree(self, node: str | None, limit: int) -> TreeLevel:
        """The namespaces of each; or what lies below a node of the one whose node it is."""
        serving = self._members.serving()
        if node is None:
            found = await ask_all(serving, lambda one: one.tree(None, limit))
            return joined_roots(found, limit)
        for engine in serving.values():
            if (level := await engine.tree(node, limit)).is_known:
                return level
        return TreeLevel(query_id="", is_known=False)

    async def prefixes(self, order: PrefixOrder, limit: int) -> Prefixes:
        """The hottest or the most wasteful of all."""
        found = await ask_all(self._members.serving(), lambda one: one.prefixes(order, limit))
        return joined_prefixes(found, order, limit)

    async def flush(
        self,
        *,
        flow: str | None = None,
        namespace: bytes | None = None,
        flush_id: str = UNRECORDED,
    ) -> int:
        """Flush every one, and return the blocks of all.

        Raises NotAllFlushed, after the others have been flushed, where a replica is away: what its
        disk holds comes back with it, unless the flush is recorded.
        """
        answers = await ask_each(
            self._members.connected(),
            lambda one: one.flush(flow=flow, namespace=namespace, flush_id=flush_id),
            WITHIN_S,
        )
        missed = {
            name: "no engine is connected" for name in self._members.engines if name not in answers
        }
        flushed = 0
        for name, answer in answers.items():
            if isinstance(answer, EngineError):
                missed[name] = answer.message
            else:
                flushed += answer
        if missed:
            raise NotAllFlushed(flushed, missed, len(self._members.engines))
        return flushed

    async def pin(self, prefix: PinnedPrefix) -> int:
        """Pin it in every one that is ready; returns the blocks in one of them.

        One that is new fetches it from another one before, where that is faster than computing.
        Raises the first refusal, after all have answered. One that dies meanwhile does not count.
        """
        ready = {name: self._members.engines[name] for name in self._members.ready()}
        await self._first_fetches.fetch([*ready], prefix)
        answers = await ask_each(ready, lambda one: one.pin(prefix))
        away = (EngineUnavailable, EngineDied)
        for answer in answers.values():
            if isinstance(answer, EngineError) and not isinstance(answer, away):
                raise answer
        pinned = [one for one in answers.values() if not isinstance(one, EngineError)]
        if not pinned:
            raise first_error(answers)
        return max(pinned)

    async def unpin(self, pin_id: str) -> int:
        """Unpin it in every one."""
        found = await ask_all(self._members.serving(), lambda one: one.unpin(pin_id))
        return max(found.values())

    async def probe(self, token_ids: bytes, namespaces: tuple[tuple[int, bytes], ...]) -> Probed:
        """What the replica would find that has most of it."""
        found = await ask_all(self._members.serving(), lambda one: one.probe(token_ids, namespaces))
        return max(found.values(), key=lambda one: one.tiers.total)

    async def marked(self, flow: str) -> list[MarkedPrefix]:
        """The prefixes that a flow has marked in any of them."""
        return joined_marks(await ask_all(self._members.serving(), lambda one: one.marked(flow)))

    async def forget_marked(
        self, flow: str, prefix_id: bytes, *, is_marked: bool = True
    ) -> int | None:
        """Forget it in every one; returns the blocks of one, None where none has it marked.

        Where one has, the others forget what they have of it without a mark: it was computed for
        a request without one, fetched, or is back from a disk. Else they would find it, and the
        first one could fetch it from them.
        """
        serving = self._members.serving()
        found = await ask_all(
            serving, lambda one: one.forget_marked(flow, prefix_id, is_marked=is_marked)
        )
        blocks = [one for one in found.values() if one is not None]
        if not blocks:
            return None
        others = {name: one for name, one in serving.items() if found.get(name) is None}
        await ask_each(
            others, lambda one: one.forget_marked(flow, prefix_id, is_marked=False), AGAIN_S
        )
        return max(blocks)
