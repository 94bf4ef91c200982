"""The flows that arrive while other flows are running, and the lengths of their prompts.

    always present  ----------------------------------------->
    comes, goes     --requests--  idle ...  --requests--  idle
                                |<- may return ->|

A flow counts as arriving if it had no KV blocks for a while, during which other flows ran. Its
first sequence is a newcomer until the prompt of this sequence is computed. For some time after a
flow has left, the engine expects its return. A flow that returns immediately counts as always
present.

Elsewhere: the budget for newcomers and returning flows (`prefill_budget.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from engine.scheduling.scheduled_rows import remaining_tokens
from engine.sequences.sequence import Sequence

AWAY_S = 0.02  # seconds; after a shorter absence, a flow counts as always present
LATELY_S = 30.0  # seconds for which the return of a flow is expected
MAX_EXPECTED = 32  # maximum number of flows whose return is expected
MAX_LEFT = 4096


@dataclass(slots=True)
class _FlowPresence:
    since: float
    tokens: int = 0
    count: int = 0
    comes_and_goes: bool = False
    left: float = 0.0

    def is_visiting(self, now: float) -> bool:
        return self.comes_and_goes and now - self.since < LATELY_S


class Arrivals:
    """The flows that have blocks, and those that have left. Used by one thread only."""

    def __init__(self) -> None:
        self._alive: dict[str, _FlowPresence] = {}
        self._left: dict[str, _FlowPresence] = {}  # in order of departure
        self._newcomers: list[Sequence] = []

    def is_newcomer(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence's flow has just arrived while other flows run."""
        if sequence.flow in self._alive:
            return False
        left = self._left.get(sequence.flow)
        came = sequence.arrived
        if left is not None and came - left.left < AWAY_S:
            return False
        return any(came - flow.since >= AWAY_S for flow in self._alive.values())

    def came(self, sequence: Sequence, *, is_newcomer: bool) -> None:
        """Record that a sequence got blocks."""
        flow = self._alive.get(sequence.flow)
        if flow is None:
            left = self._left.pop(sequence.flow, None)
            stayed = left is not None and sequence.arrived - left.left < AWAY_S
            since = left.since if left is not None and stayed else sequence.arrived
            flow = self._alive[sequence.flow] = _FlowPresence(since, comes_and_goes=is_newcomer)
        if is_newcomer:
            self._newcomers.append(sequence)
        flow.count += 1
        flow.tokens = remaining_tokens(sequence)

    def went(self, sequence: Sequence, now: float) -> None:
        """Record that a sequence released its blocks."""
        flow = self._alive[sequence.flow]
        flow.count -= 1
        if not flow.count:
            flow.left = now
            self._left[sequence.flow] = self._alive.pop(sequence.flow)
            if len(self._left) > MAX_LEFT:
                del self._left[next(iter(self._left))]

    def is_alive(self, flow: str) -> bool:
        """Return whether a flow has a sequence with blocks."""
        return flow in self._alive

    def is_visiting(self, flow: str, now: float) -> bool:
        """Return whether a flow has recently arrived, so that it may leave again."""
        found = self._alive.get(flow)
        return found is not None and found.is_visiting(now)

    def newcomers(self) -> list[Sequence]:
        """Return the newcomers with prompts not computed yet, those with fewest tokens first."""
        if self._newcomers:
            self._newcomers = [one for one in self._newcomers if _is_before_its_first_token(one)]
            self._newcomers.sort(key=remaining_tokens)
        return self._newcomers

    def expected(self, now: float, is_waiting: Callable[[str], bool]) -> int | None:
        """Return the smallest number of prompt tokens among the flows that may return.

        Return None if no flow may return. A flow that waits without being a newcomer counts as
        always present.
        """
        return min(
            (
                flow.tokens
                for name, flow in self._expected(now)
                if flow.comes_and_goes or not is_waiting(name)
            ),
            default=None,
        )

    def _expected(self, now: float) -> Iterator[tuple[str, _FlowPresence]]:
        for name, flow in self._alive.items():
            if flow.is_visiting(now):
                yield name, flow
        for name, flow in islice(reversed(self._left.items()), MAX_EXPECTED):
            if now - flow.left >= LATELY_S:
                return
            if flow.comes_and_goes or now - flow.left >= AWAY_S:
                yield name, flow


def _is_before_its_first_token(sequence: Sequence) -> bool:
    return sequence.lease is not None and sequence.num_computed < sequence.prompt_len
