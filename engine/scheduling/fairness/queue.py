"""A fair queue: deficit round robin over flows. Within a flow, the fewest tokens come first.

    flow a  credit  120 | s1 s4 s7      Flows take turns while their credit is positive. When no
    flow b  credit  -30 | s2            waiting flow has credit left, a round begins: every
    flow c  credit -900 | (idle)        flow gets quantum x weight.

The engine charges a flow after the work is done, because the length of the output is not known in
advance. A flow in debt waits until enough rounds have paid its debt. Work that was done while no
other flow waited causes no debt. A flow that returns starts without credit.

A flow with no running sequence and little debt comes before all other flows (`newcomer`). A flow
with few requests is therefore not slowed by the load of other flows.

Within a flow, the sequence with the fewest uncached tokens comes first, because it delays the other
sequences least. A sequence can be passed over only a limited number of times.

Interactive sequences come before batch sequences, unless batch has got less than its share. A flow
has one credit for both priorities.

A flow may use only a part of the free places. A refusal says when a place will probably be free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from engine.errors import QueueFull
from engine.link.messages import Priority
from engine.scheduling.fairness.flow_queue import AdmissionRate, FlowQueue
from engine.scheduling.fairness.priority_classes import PriorityClasses
from engine.sequences.sequence import Sequence

Rank = Callable[[Sequence], int | None]
"""A function that returns the cached tokens of a waiting sequence, or None if it may not start."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The bounds of the queue. `capacity` and `lookahead` are in sequences, `quantum` in tokens."""

    capacity: int = 1024
    quantum: int = 512  # tokens of credit that a flow of weight 1 gets in a round
    lookahead: int = 16  # number of a flow's oldest sequences that are compared by their tokens
    patience: int = 8  # how often one sequence of a flow may be passed over
    max_idle_flows: int = 4096
    greed: float = 3.0  # maximum waiting sequences of a flow, per free place
    batch_share: float = 1 / 8  # batch's share of the work while both priorities wait


class FairQueue:
    """A queue of waiting sequences. Used by one thread only."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._flows: dict[str, FlowQueue] = {}  # in the order in which flows are served
        self._length = 0
        self._backlogged = 0
        self._uncontended = 0.0  # tokens computed, per weight, while no other flow waited
        self._classes = PriorityClasses(limits.batch_share, most_due=8.0 * limits.quantum)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all waiting sequences, flow by flow."""
        for flow in self._flows.values():
            yield from (*flow.interactive, *flow.batch)

    def push(self, sequence: Sequence) -> None:
        """Add a new sequence at the end of its flow. Raises QueueFull."""
        flow = self._flows.get(sequence.flow)
        if not self._may_wait(flow):
            admission_rate = AdmissionRate() if flow is None else flow.admission_rate
            raise QueueFull(
                "too many requests wait for the engine",
                retry_after_s=admission_rate.retry_after_s(sequence.arrived),
            )
        flow = self._enter(sequence)
        flow.admission_rate.came(sequence.arrived)
        flow.waiting(sequence.priority).append(sequence)

    def push_module(self, sequence: Sequence) -> None:
        """Add a sequence that computes a prompt module, even if the queue is full."""
        self._enter(sequence).waiting(sequence.priority).append(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """Put a preempted sequence back at the front of its flow, even if the queue is full."""
        flow = self._enter(sequence)
        sequence.passed_over = self._limits.patience
        flow.waiting(sequence.priority).insert(0, sequence)

    def select(self, rank: Rank) -> Sequence | None:
        """Return the next sequence that may start (`rank` is not None). It stays in the queue."""
        for priority in self._classes.order():
            choice = self._select_of(priority, rank)
            if choice is not None:
                return choice
        return None

    def shorter(self, prompt: Sequence, tokens: int, rank: Rank) -> Sequence | None:
        """Find a waiting sequence of the same flow and priority with fewer tokens than `prompt`.

        Return None if it is not the flow's turn, or if `prompt` is overdue. The sequence stays in
        the queue, and no round begins.
        """
        flow = self._flows.get(prompt.flow)
        if flow is None or self.is_overdue(prompt) or not self._has_turn(flow, prompt.priority):
            return None
        return self._choose(flow.waiting(prompt.priority), rank, below=tokens)

    def is_overdue(self, sequence: Sequence) -> bool:
        """Return whether a sequence was passed over so often that it must come first now."""
        return sequence.passed_over >= self._limits.patience

    def num_waiting(self, flow: str) -> int:
        """Count the waiting sequences of a flow."""
        found = self._flows.get(flow)
        return 0 if found is None else found.num_waiting

    def newcomer(self, present: Mapping[str, int], rank: Rank) -> Sequence | None:
        """Return the next interactive sequence of a flow with little debt and nothing running."""
        return self._owing_little(present, rank, (n for n in self._flows if n not in present))

    def owing_little(self, present: Mapping[str, int], rank: Rank) -> Sequence | None:
        """Return the next interactive sequence of a flow with little debt.

        `present` maps each flow to the uncomputed tokens of its running sequences. Debt is little
        if it exceeds the smallest debt of other flows by at most one round. Of several such flows,
        the one with the fewest waiting sequences is chosen. The sequence stays in the queue, and no
        round begins.
        """
        return self._owing_little(present, rank, self._flows)

    def waiting_flows(self) -> Iterator[str]:
        """Yield the flows with waiting sequences."""
        return (name for name, flow in self._flows.items() if flow.num_waiting)

    def take(self, sequence: Sequence) -> None:
        """Remove a selected sequence, and end the turn of its flow."""
        flow = self._flows[sequence.flow]
        waiting = flow.waiting(sequence.priority)
        index = _index(waiting, sequence)
        for elder in waiting[:index]:
            elder.passed_over += 1
        flow.admission_rate.started()
        self._leave(sequence, flow, index)
        if flow.num_waiting or flow.credit < 0:
            self._flows[sequence.flow] = self._flows.pop(sequence.flow)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that was cancelled."""
        flow = self._flows[sequence.flow]
        self._leave(sequence, flow, _index(flow.waiting(sequence.priority), sequence))

    def charge(self, sequence: Sequence, cost: float) -> None:
        """Charge a sequence's flow for work, in tokens."""
        self._classes.charge(sequence.priority, cost)
        flow = self._flows.get(sequence.flow)
        own = 1 if flow is not None and flow.num_waiting else 0
        if self._backlogged > own:
            flow = flow or self._open(sequence)
            flow.credit -= cost
            return
        self._uncontended += cost / sequence.weight
        if flow is not None:
            flow.credit = max(flow.credit - cost, min(flow.credit, 0.0))

    def refund(self, sequence: Sequence, cost: float) -> None:
        """Refund a charge for work that was not done. It reduces debt, but cannot give credit."""
        flow = self._flows.get(sequence.flow)
        if flow is not None:
            flow.credit = min(flow.credit + cost, max(flow.credit, 0.0))

    def _owing_little(
        self, present: Mapping[str, int], rank: Rank, names: Iterable[str]
    ) -> Sequence | None:
        if self._length == 0:
            return None
        debts = {
            name: self._flows[name].debt + tokens / self._flows[name].weight
            for name, tokens in present.items()
            if name in self._flows
        }
        two = nsmallest(2, debts, key=debts.__getitem__)
        owing = list[FlowQueue]()
        for name in names:
            others = (debts[one] for one in two if one != name)
            flow = self._flows[name]
            most = min(others, default=0.0) + self._limits.quantum
            if flow.interactive and debts.get(name, flow.debt) < most:
                owing.append(flow)
        for flow in sorted(owing, key=attrgetter("num_waiting")):
            choice = self._choose(flow.interactive, rank)
            if choice is not None:
                return choice
        return None

    def _may_wait(self, flow: FlowQueue | None) -> bool:
        """Return whether one more sequence of `flow` may wait.

        With `greed` 3, a single flow can fill 3/4 of the queue. If n flows send as much as they
        can, each fills 3/(3n + 1).
        """
        free = self._limits.capacity - self._length
        waiting = 0 if flow is None else flow.num_waiting
        return waiting < free * self._limits.greed

    def _select_of(self, priority: Priority, rank: Rank) -> Sequence | None:
        broke: list[tuple[FlowQueue, Sequence]] = []
        for flow in self._flows.values():
            choice = self._choose(flow.waiting(priority), rank)
            if choice is None:
                continue
            if flow.credit > 0:
                return choice
            broke.append((flow, choice))
        if not broke:
            return None
        self._begin_rounds([flow for flow, _ in broke])
        return next((choice for flow, choice in broke if flow.credit > 0), broke[0][1])

    def _has_turn(self, flow: FlowQueue, priority: Priority) -> bool:
        for first in self._classes.order():
            waiting = [one for one in self._flows.values() if one.waiting(first)]
            if waiting:
                ours = next((one for one in waiting if one.credit > 0), None)
                is_ours = flow is ours or waiting == [flow]
                return is_ours and first == priority
        return False

    def _choose(
        self, waiting: list[Sequence], rank: Rank, *, below: float = math.inf
    ) -> Sequence | None:
        """Choose an overdue sequence, else the sequence with the fewest tokens to compute.

        Return None if it has `below` or more tokens to compute. Of several with the fewest, choose
        the oldest. Sequences that are not ready do not count towards `lookahead`, because they may
        wait for blocks that later sequences compute.
        """
        best: Sequence | None = None
        fewest = below
        ready = (one for one in waiting if not one.is_unready)
        for sequence in islice(ready, self._limits.lookahead):
            cached = rank(sequence)
            if cached is None:
                continue
            to_go = sequence.length - cached
            if self.is_overdue(sequence):
                return sequence if to_go < below else None
            if to_go < fewest:
                best, fewest = sequence, to_go
        return best

    def _begin_rounds(self, broke: list[FlowQueue]) -> None:
        quantum = self._limits.quantum
        rounds = min(math.floor(-flow.credit / (quantum * flow.weight)) + 1 for flow in broke)
        for name, flow in list(self._flows.items()):
            share = quantum * flow.weight
            most = share if flow.num_waiting else 0.0
            flow.credit = min(flow.credit + rounds * share, most)
            self._forget_if_clear(name, flow)

    def _enter(self, sequence: Sequence) -> FlowQueue:
        flow = self._flows.get(sequence.flow) or self._open(sequence)
        flow.weight = sequence.weight
        if not flow.num_waiting:
            self._backlogged += 1
            self._forgive(flow)
        self._length += 1
        self._classes.entered(sequence.priority)
        return flow

    def _forgive(self, flow: FlowQueue) -> None:
        share = (self._uncontended - flow.forgiven) * flow.weight
        flow.credit = max(flow.credit, min(flow.credit + share, 0.0))
        flow.forgiven = self._uncontended

    def _leave(self, sequence: Sequence, flow: FlowQueue, index: int) -> None:
        del flow.waiting(sequence.priority)[index]
        self._length -= 1
        self._classes.left(sequence.priority)
        if not flow.num_waiting:
            self._backlogged -= 1
            flow.credit = min(flow.credit, 0.0)
            flow.forgiven = self._uncontended
            self._forget_if_clear(sequence.flow, flow)

    def _open(self, sequence: Sequence) -> FlowQueue:
        if len(self._flows) - self._backlogged >= self._limits.max_idle_flows:
            del self._flows[next(n for n, flow in self._flows.items() if not flow.num_waiting)]
        flow = self._flows[sequence.flow] = FlowQueue(sequence.weight, forgiven=self._uncontended)
        return flow

    def _forget_if_clear(self, name: str, flow: FlowQueue) -> None:
        if not flow.num_waiting and flow.credit >= 0:
            del self._flows[name]


def _index(waiting: list[Sequence], sequence: Sequence) -> int:
    return next(i for i, one in enumerate(waiting) if one is sequence)
