"""The choice of the sequence that must give back blocks or slots that its flow has borrowed.

The engine lends a flow's unused KV blocks, batch slots and state slots to other flows.

    blocks  A flow whose sequences use less than its part takes blocks back from flows that use more
            than their parts. A part is the flow's partition, or its floor without partitions. A
            visiting flow also takes pooled blocks beyond its part. Afterwards the giving flow must
            still have more blocks than the visiting flow, each relative to the flow's weight.
    slots   A flow without slots takes a slot from the flow with the most slots relative to its
            weight, if that flow keeps at least one. A visiting flow takes further slots. Then the
            giving flow must still have more slots than the visiting flow, each relative to the
            flow's weight.

A visiting flow has recently arrived, while other flows were running (`arrivals.py`). Between flows
that are always present, the queue decides which gets a slot. The giving flow's sequence that
arrived last is preempted. The oldest sequence of all giving flows is never preempted, so at least
one sequence always finishes.

Elsewhere: the order of flows (`queue.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import SequenceCache
from prefix_cache.eviction.shares import PUBLISHED


class BlockParts:
    """The numbers of device blocks that each flow's sequences use, and each flow's part."""

    def __init__(self, sequence_cache: SequenceCache) -> None:
        self._cache = sequence_cache
        self._used = sequence_cache.in_use()

    def is_beyond(self, flow: str) -> bool:
        """Return whether a flow's sequences use more blocks than its part."""
        return self._beyond(flow) > 0

    def fits(self, sequence: Sequence) -> bool:
        """Return whether a sequence's flow stays within its part when the sequence starts."""
        flow = sequence.flow
        return flow == PUBLISHED or self._beyond(flow) + self._cache.lacking(sequence) <= 0

    def victim(
        self, sequence: Sequence, others: Iterable[Sequence], *, is_visiting: bool
    ) -> Sequence | None:
        """Choose the sequence that gives up blocks for `sequence`, or return None.

        It is the latest arrival of the flow that exceeds its part by the most blocks.
        """
        is_within = self.fits(sequence)
        if not is_within and (self._cache.are_partitions or not is_visiting):
            return None
        wanted = (self._used[sequence.flow] + self._cache.lacking(sequence)) / sequence.weight
        giving = [
            one
            for one in others
            if one.flow not in (sequence.flow, PUBLISHED)
            and self.is_beyond(one.flow)
            and (is_within or self._without(one) > wanted)
        ]
        if len(giving) < 2:
            return None
        giving.remove(min(giving, key=attrgetter("arrived")))
        furthest = max((one.flow for one in giving), key=self._beyond)
        return latest(one for one in giving if one.flow == furthest)

    def _beyond(self, flow: str) -> int:
        return self._used[flow] - self._cache.part(flow)

    def _without(self, one: Sequence) -> float:
        size = 0 if one.lease is None else one.lease.num_blocks
        return (self._used[one.flow] - size) / one.weight


class SlotParts:
    """The numbers of slots that each flow's sequences use. `spared` sequences give up no slot."""

    def __init__(self, holding: Iterable[Sequence], spared: Iterable[Sequence] = ()) -> None:
        kept = {id(one) for one in spared}
        held = list(holding)
        self._slots = Counter(one.flow for one in held)
        self._giving = [one for one in held if id(one) not in kept]
        self._weights = {one.flow: one.weight for one in self._giving}
        self._may_give = Counter(one.flow for one in self._giving)

    def victim(self, sequence: Sequence, *, is_visiting: bool) -> Sequence | None:
        """Choose the sequence that gives up a slot for `sequence`, or return None.

        It is the latest arrival of the flow with the most slots relative to its weight.
        """
        flows = [flow for flow in self._may_give if flow != sequence.flow]
        if not flows:
            return None
        most = max(flows, key=lambda flow: self._may_give[flow] / self._weights[flow])
        mine, left = self._slots[sequence.flow], self._may_give[most] - 1
        has_more = left * sequence.weight > (mine + 1) * self._weights[most]
        if not left or (mine and not (is_visiting and has_more)):
            return None
        return latest(one for one in self._giving if one.flow == most)


def latest(sequences: Iterable[Sequence]) -> Sequence:
    """Return the sequence that arrived last, or of several the last in order."""
    return max(reversed(list(sequences)), key=attrgetter("arrived"))
