"""The leases of cached prompt modules for the first of the waiting sequences.

With partitions, every flow has its own part of the cache, so each flow has a first sequence. The
modules of one flow then take no room from other flows. Without partitions, there is only one first
sequence for all flows, so that waiting sequences never keep blocks from each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from engine.sequences.modules import ModuleBlocks, SequenceModules
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.leases.lease import Lease


class HeldModules:
    """The first sequences, and for each the leases of its cached prompt modules."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        # flow -> its first sequence; key None: the only first sequence
        self._firsts: dict[str | None, Sequence] = {}
        self._leases: dict[Sequence, dict[bytes, Lease]] = {}

    def __contains__(self, sequence: Sequence) -> bool:
        """Return whether a sequence is a first sequence."""
        return sequence in self._leases

    def offer(self, sequence: Sequence) -> None:
        """Make a sequence the first sequence (of its flow) if there is none."""
        flow = sequence.flow if self._cache.quotas.are_partitions else None
        if flow not in self._firsts and sequence not in self._leases:
            self._firsts[flow] = sequence
            self._leases[sequence] = {}

    def end(self, there: Collection[Sequence], now: float) -> None:
        """Remove the first sequences that have their own lease now, or are no longer `there`."""
        ended = [one for one in self._leases if one not in there or one.lease is not None]
        for sequence in ended:
            self._release(sequence, now)
            del self._leases[sequence]
        self._firsts = {flow: one for flow, one in self._firsts.items() if one in self._leases}

    def waiting(self, most: int) -> Iterator[tuple[Sequence, SequenceModules]]:
        """Yield first sequences that wait for modules, in turn, until they have `most` modules."""
        for flow, sequence in [*self._firsts.items()]:
            modules = sequence.modules
            if most > 0 and modules is not None and modules.is_awaited:
                most -= len(modules.blocks)
                self._firsts[flow] = self._firsts.pop(flow)  # the next call yields it last
                yield sequence, modules

    def hold(self, sequence: Sequence, present: Iterable[ModuleBlocks], now: float) -> None:
        """Lease the cached modules of a first sequence."""
        held = self._leases[sequence]
        for one in present:
            if one.module.namespace not in held:
                lease = self._cache.read(
                    one.path, one.token_ids, owner=sequence.flow, now=now, is_part=True
                )
                if lease is not None:
                    held[one.module.namespace] = lease

    def let_go(self, now: float) -> None:
        """Release all leases, but keep the first sequences."""
        for sequence in self._leases:
            self._release(sequence, now)

    def _release(self, sequence: Sequence, now: float) -> None:
        for lease in self._leases[sequence].values():
            self._cache.release(lease, now=now)
        self._leases[sequence].clear()
