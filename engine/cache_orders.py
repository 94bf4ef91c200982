"""What operators and gateways order of the whole cache: dividing it anew, dropping parts of it.

Knows: whose blocks are dropped, and where else traces of them are. Does not know: prefixes of a
single tenant (`prefix_queries.py`), pins, or who sent an order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from engine.components import Components
from engine.errors import InvalidRequest
from engine.exchange.recent_flushes import FlushScope
from engine.link.messages import Partition, RecordedFlushes
from engine.link.query_messages import UNRECORDED, Flush, Flushed
from engine.scheduling.intake import partition_of
from engine.scheduling.sequence import Sequence
from prefix_cache.namespace import Namespace

_log = logging.getLogger(__name__)


def divide(components: Components, message: Partition) -> None:
    """Divide the cache among flows; what cannot be divided so stays as it was."""
    cache = components.cache
    longest = cache.blocks_for(components.welcome.max_model_len)
    most = min(longest, cache.capacity.pool().total // 2)
    try:
        cache.quotas.partition(partition_of(message), most)
    except InvalidRequest as error:
        _log.error("the cache is not divided anew: %s", error.message)


def flush(components: Components, message: Flush, alive: Iterable[Sequence]) -> Flushed:
    """Drop a flow's blocks, or a namespace's, or all; what is in use stays until its end."""
    if message.namespace is not None:
        namespace = Namespace(message.namespace)
        blocks = components.cache.flush(namespace=namespace, owner=message.flow)
        components.exchange.flush(FlushScope(message.flow, namespace), components.clock())
    elif message.flush_id == UNRECORDED:
        blocks = _flush(components, message.flow, alive)
    else:
        _flush_all(components, {message.flush_id: message.flow}, alive)
        blocks = components.done_flushes.blocks(message.flush_id)
    return Flushed(query_id=message.query_id, blocks=blocks)


def flush_recorded(
    components: Components, message: RecordedFlushes, alive: Iterable[Sequence]
) -> None:
    """Do the recorded flushes that this cache has not done."""
    _flush_all(components, message.flushes, list(alive))


def _flush_all(
    components: Components, flushes: Mapping[str, str | None], alive: Iterable[Sequence]
) -> None:
    due = components.done_flushes.due(flushes)
    for flush_id, flow in due.items():
        components.done_flushes.note(flush_id, _flush(components, flow, alive))
    components.copies.flushed(due)


def _flush(components: Components, flow: str | None, alive: Iterable[Sequence]) -> int:
    """Drop a flow's blocks, or all; returns how many."""
    blocks = components.cache.flush(owner=flow)
    components.exchange.flush(FlushScope(flow, None), components.clock())
    if flow is None:
        components.copies.erase_unlisted()
    else:
        _forget_flow(components, flow, alive)
    components.intake.forget_grammars(flow)
    return blocks


def _forget_flow(components: Components, flow: str, alive: Iterable[Sequence]) -> None:
    """Make its records on disk unreadable, and keep what still runs of it out of the cache."""
    for sequence in alive:
        if sequence.flow == flow:
            components.scheduler.sequence_cache.keep_out(sequence)
    components.copies.forget_owner(flow)
    components.cache.quotas.forget(flow)
