"""The commands of operators and gateways on the cache: divide it, drop parts of it.

    order --> begin to prune --> a slice in each iteration (`prunings.py`) --> reply

A reply is sent when all blocks are dropped. Until then, requests may find blocks that are left.

Elsewhere: the queries about a tenant's prefixes (`prefix_queries.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from engine.components import Components
from engine.errors import InvalidRequest
from engine.exchange.fetching.recent_flushes import FlushScope
from engine.link.erasure import Erasure, TierErasure
from engine.link.messages import Partition
from engine.link.query_messages import (
    UNRECORDED,
    AdapterDropped,
    DropAdapter,
    Flush,
    Flushed,
    ForgetMarked,
    MarkedForgotten,
    ReplyMessage,
)
from engine.queries.done_flushes import DoneFlushes, Dropped
from engine.queries.prunings import Prunings
from engine.sequences.intake import partition_of
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace
from prefix_cache.tree.tally import Tally
from storage.move import Tier

_log = logging.getLogger(__name__)

Order = Flush | DropAdapter | ForgetMarked
Alive = Collection[Sequence]  # all accepted sequences, the oldest first


class CacheOrders:
    """An executor of commands on one engine's cache. Used by one thread only."""

    def __init__(self, components: Components, prunings: Prunings) -> None:
        disk = components.copies.disk
        self._cache = components.cache
        self._copies = components.copies
        self._exchange = components.exchange
        self._adapters = components.adapters
        self._sequences = components.scheduler.sequence_cache
        self._forget_grammars = components.intake.forget_grammars
        welcome = components.welcome
        self._rates = components.rates
        self._num_ranks = welcome.tensor_parallel * welcome.pipeline_parallel
        self._max_model_len = welcome.max_model_len
        self._clock = components.clock
        self._prunings = prunings
        self._replies: list[tuple[bytes, ReplyMessage]] = []
        # queries that wait for recorded flushes under way, by the flush's id
        self._waiting: dict[str, list[tuple[bytes, Flush]]] = {}
        self.done_flushes = DoneFlushes(() if disk is None else disk.done_flushes())

    def divide(self, message: Partition) -> None:
        """Divide the cache among flows. If that is impossible, log it and change nothing."""
        context = self._max_model_len
        longest = {
            flow: self._cache.blocks_for(min(quota.max_request_tokens or context, context))
            for flow, quota in message.flows.items()
        }
        try:
            self._cache.quotas.partition(partition_of(message), longest)
        except InvalidRequest as error:
            _log.error("the cache is not divided anew: %s", error.message)

    def order(self, client: bytes, query: Order, alive: Alive) -> None:
        """Begin to carry out a command. `replies` has its reply once all its blocks are dropped."""
        match query:
            case Flush():
                self._order_flush(client, query, alive)
            case DropAdapter():
                self._drop_adapter(client, query, alive)
            case ForgetMarked():
                self._forget_marked(client, query, alive)

    def replies(self) -> list[tuple[bytes, ReplyMessage]]:
        """Return the replies since the last call, each with the client that gets it."""
        replies, self._replies = self._replies, []
        return replies

    def flush_recorded(self, flushes: Mapping[str, str | None], alive: Alive) -> None:
        """Begin the recorded flushes that this cache has neither done nor begun."""
        for flush_id, flow in self.done_flushes.due(flushes).items():
            if flush_id not in self._waiting:
                self._waiting[flush_id] = []
                self._flush(flow, partial(self._note, flush_id), alive)

    def _order_flush(self, client: bytes, query: Flush, alive: Alive) -> None:
        """Drop all blocks, those of a flow or those of a namespace. Report how many were dropped.

        Leased blocks stay until they are released. If the flush has an id and a flow, the reply
        reports the erasure.
        """
        if query.namespace is not None:
            namespaces = {Namespace(query.namespace)}
            self._drop_namespaces(client, query, namespaces, Flushed, alive)
        elif query.flush_id == UNRECORDED:

            def reply(dropped: Dropped, _: Alive) -> None:
                done = Flushed(query_id=query.query_id, blocks=dropped.blocks)
                self._replies.append((client, done))

            self._flush(query.flow, reply, alive)
        else:
            self.flush_recorded({query.flush_id: query.flow}, alive)
            if query.flush_id in self._waiting:
                self._waiting[query.flush_id].append((client, query))
            else:
                self._replies.append((client, self._flushed(query, alive)))

    def _drop_adapter(self, client: bytes, query: DropAdapter, alive: Alive) -> None:
        """Forget a flow's adapter. Drop and count the blocks that the flow computed with it.

        The flow's running sequences that use the adapter will leave no blocks in the cache.
        """
        for sequence in alive:
            adapter = sequence.adapter
            if adapter and (adapter.digest, sequence.flow) == (query.digest, query.flow):
                self._sequences.keep_out(sequence)
        used = self._adapters.drop(query.digest, query.flow, alive)
        namespaces = used | set(map(Namespace, query.namespaces))
        self._drop_namespaces(client, query, namespaces, AdapterDropped, alive)

    def _drop_namespaces(
        self,
        client: bytes,
        query: Flush | DropAdapter,
        namespaces: AbstractSet[Namespace],
        reply: type[Flushed | AdapterDropped],
        alive: Alive,
    ) -> None:
        def stop_fetches() -> None:
            for one in namespaces:
                self._exchange.flush(FlushScope(query.flow, one), self._clock())

        def end(_: Alive) -> None:
            stop_fetches()
            self._replies.append((client, reply(query_id=query.query_id, blocks=pruning.blocks)))

        stop_fetches()
        pruning = self._cache.pruning(namespaces, query.flow)
        self._prunings.add(pruning, end, alive)

    def _forget_marked(self, client: bytes, query: ForgetMarked, alive: Alive) -> None:
        """Forget a prefix. Also stop the flow's fetches, which could fetch the prefix again."""
        flow, now = query.flow, self._clock()
        pruning = self._cache.retained.forget(
            flow, query.prefix_id, now=now, is_marked=query.is_marked
        )
        if pruning is None:
            self._replies.append((client, MarkedForgotten(query_id=query.query_id, blocks=None)))
            return

        def end(_: Alive) -> None:
            self._exchange.flush(FlushScope(flow, None), self._clock())
            done = MarkedForgotten(query_id=query.query_id, blocks=pruning.blocks)
            self._replies.append((client, done))

        self._exchange.flush(FlushScope(flow, None), now)
        self._prunings.add(pruning, end, alive)

    def _flush(
        self, flow: str | None, then: Callable[[Dropped, Alive], None], alive: Alive
    ) -> None:
        """Drop a flow's blocks, or all blocks. Call `then` with the numbers of dropped blocks."""
        tally = Tally()

        def end(alive: Alive) -> None:
            self._exchange.flush(FlushScope(flow, None), self._clock())
            if flow is None:
                self._copies.erase_unlisted()
            else:
                self._adapters.drop_all(flow, alive)
                self._copies.forget_owner(flow)
                self._cache.quotas.forget(flow)
            self._forget_grammars(flow)
            then(Dropped(pruning.blocks, self._copies_in(tally)), alive)

        self._exchange.flush(FlushScope(flow, None), self._clock())
        for sequence in alive:
            if sequence.flow == flow:
                self._sequences.keep_out(sequence)
        pruning = self._cache.pruning(None, flow, tally)
        self._prunings.add(pruning, end, alive)

    def _note(self, flush_id: str, dropped: Dropped, alive: Alive) -> None:
        self.done_flushes.note(flush_id, dropped)
        self._copies.flushed([flush_id])
        for client, query in self._waiting.pop(flush_id):
            self._replies.append((client, self._flushed(query, alive)))

    def _flushed(self, query: Flush, alive: Alive) -> Flushed:
        """Return the reply to a recorded flush that is done."""
        blocks, tiers = self.done_flushes.dropped(query.flush_id)
        erasure = None
        if (flow := query.flow) is not None:
            running = sum(sequence.flow == flow for sequence in alive)
            erasure = Erasure(tiers=tiers, running=running, disk=self._copies.erasure(flow))
        return Flushed(query_id=query.query_id, blocks=blocks, erasure=erasure)

    def _copies_in(self, tally: Tally) -> tuple[TierErasure, ...]:
        """Return the dropped copies by tier. Their bytes are rank 0's times the number of ranks."""

        def of(tier: Tier) -> TierErasure:
            blocks, states = tally.blocks[tier], tally.states[tier]
            room = (blocks + states * self._rates.state_blocks) * self._rates.block_bytes
            return TierErasure(
                tier=tier.value, blocks=blocks, states=states, num_bytes=room * self._num_ranks
            )

        return tuple(map(of, self._cache.capacity.allocators))
