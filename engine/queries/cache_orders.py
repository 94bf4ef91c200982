"""The commands of operators and gateways on the whole cache: divide it, drop parts of it.

Elsewhere: the queries about a tenant's prefixes (`prefix_queries.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from engine.components import Components
from engine.errors import InvalidRequest
from engine.exchange.fetching.recent_flushes import FlushScope
from engine.link.erasure import Erasure, TierErasure
from engine.link.messages import Partition, RecordedFlushes
from engine.link.query_messages import UNRECORDED, AdapterDropped, DropAdapter, Flush, Flushed
from engine.queries.done_flushes import DoneFlushes, Dropped
from engine.sequences.intake import partition_of
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace
from prefix_cache.tree.tally import Tally
from storage.move import Tier

_log = logging.getLogger(__name__)


class CacheOrders:
    """An executor of commands on one engine's cache. Used by one thread only."""

    def __init__(self, components: Components) -> None:
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

    def flush(self, message: Flush, alive: Collection[Sequence]) -> Flushed:
        """Drop all blocks, those of a flow or those of a namespace. Report how many were dropped.

        Leased blocks stay until they are released. If the flush has an id and a flow, the reply
        reports the erasure.
        """
        erasure = None
        if message.namespace is not None:
            blocks = self._cache.flush(namespace=message.namespace, owner=message.flow)
            self._exchange.flush(FlushScope(message.flow, message.namespace), self._clock())
        elif message.flush_id == UNRECORDED:
            blocks = self._flush(message.flow, alive).blocks
        else:
            self._flush_all({message.flush_id: message.flow}, alive)
            blocks, tiers = self.done_flushes.dropped(message.flush_id)
            if message.flow is not None:
                erasure = self._erasure(message.flow, tiers, alive)
        return Flushed(query_id=message.query_id, blocks=blocks, erasure=erasure)

    def _erasure(
        self, flow: str, tiers: tuple[TierErasure, ...] | None, alive: Collection[Sequence]
    ) -> Erasure:
        running = sum(sequence.flow == flow for sequence in alive)
        return Erasure(tiers=tiers, running=running, disk=self._copies.erasure(flow))

    def flush_recorded(self, message: RecordedFlushes, alive: Collection[Sequence]) -> None:
        """Do the recorded flushes that this cache has not done yet."""
        self._flush_all(message.flushes, alive)

    def drop_adapter(self, message: DropAdapter, alive: Collection[Sequence]) -> AdapterDropped:
        """Forget a flow's adapter. Drop and count the blocks that the flow computed with it.

        The flow's running sequences that use the adapter will leave no blocks in the cache.
        """
        for sequence in alive:
            adapter = sequence.adapter
            if adapter and (adapter.digest, sequence.flow) == (message.digest, message.flow):
                self._sequences.keep_out(sequence)
        used = self._adapters.drop(message.digest, message.flow, alive)
        blocks = 0
        for namespace in used | set(map(Namespace, message.namespaces)):
            blocks += self._cache.flush(namespace=namespace, owner=message.flow)
            self._exchange.flush(FlushScope(message.flow, namespace), self._clock())
        return AdapterDropped(query_id=message.query_id, blocks=blocks)

    def _flush_all(self, flushes: Mapping[str, str | None], alive: Collection[Sequence]) -> None:
        due = self.done_flushes.due(flushes)
        for flush_id, flow in due.items():
            self.done_flushes.note(flush_id, self._flush(flow, alive))
        self._copies.flushed(due)

    def _flush(self, flow: str | None, alive: Collection[Sequence]) -> Dropped:
        """Drop a flow's blocks, or all blocks. Return the numbers of dropped blocks and copies."""
        tally = Tally()
        blocks = self._cache.flush(owner=flow, tally=tally)
        self._exchange.flush(FlushScope(flow, None), self._clock())
        if flow is None:
            self._copies.erase_unlisted()
        else:
            self._forget_flow(flow, alive)
        self._forget_grammars(flow)
        return Dropped(blocks, self._copies_in(tally))

    def _copies_in(self, tally: Tally) -> tuple[TierErasure, ...]:
        """Return the dropped copies by tier. Their bytes are rank 0's times the number of ranks."""

        def of(tier: Tier) -> TierErasure:
            blocks, states = tally.blocks[tier], tally.states[tier]
            room = (blocks + states * self._rates.state_blocks) * self._rates.block_bytes
            return TierErasure(
                tier=tier.value, blocks=blocks, states=states, num_bytes=room * self._num_ranks
            )

        return tuple(map(of, self._cache.capacity.allocators))

    def _forget_flow(self, flow: str, alive: Collection[Sequence]) -> None:
        for sequence in alive:
            if sequence.flow == flow:
                self._sequences.keep_out(sequence)
        self._adapters.drop_all(flow, alive)
        self._copies.forget_owner(flow)
        self._cache.quotas.forget(flow)
