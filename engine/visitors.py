"""Flows that come and go, and what they are spared of those that are always there.

    alive    a flood ------------------------------------------->
    visitor       --asks--   reads ...   --asks--   reads ...
                          |<- may return ->|

Who comes waits for the step under way, and then for all that shares its own step. So, as long as
somebody is here for a visit, or left lately and may return,

    - the prompts of others get a bounded part of a step: as many tokens as a share of what the
      smallest of those visitors had to compute itself, but never fewer than a bound below which
      steps lose too much to what each costs of itself;
    - beside a visitor's prompt they get nothing, until what visitors had in this way comes to a
      whole step, and then as much as these; what others compute in between counts against it. So
      they sit out for hardly longer than a large step of somebody else would have taken.

A visit begins with a sequence that comes interactively, of a flow with nothing alive for a
while, to others that have been at work for as long. Who returns at once takes turns with the
others all day long, and several that start together are no visitors of each other. Where nobody
comes and goes, everybody has whole steps.

Knows: who is alive since when, and who left when; tokens of a step. Does not know: credit
(`queue.py`), seats, or how long anything takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from engine.plan import Plan, StepLimits, tokens_to_go
from engine.sequence import Sequence
from engine.step import Row

AWAY_S = 0.02  # who was away for less takes turns with the others
LATELY_S = 30.0  # who reads an answer returns within it, and no visit takes longer
SHARE = 1 / 8  # of a visitor's own tokens
MOST_ASKED = 32  # of those who may return, the last to leave
MOST_KNOWN = 4096  # flows that left


@dataclass(slots=True)
class _Alive:
    since: float
    tokens: int  # that its last sequence had to compute
    count: int = 0
    visits: bool = False


@dataclass(frozen=True, slots=True)
class _Left:
    at: float
    since: float
    tokens: int
    visited: bool


class Visitors:
    """Who is here for a visit, or may return for one. One owner thread."""

    def __init__(self, limits: StepLimits) -> None:
        self._limits = limits
        self._alive: dict[str, _Alive] = {}
        self._left: dict[str, _Left] = {}  # flows with nothing alive; who left first is first
        self._present: list[Sequence] = []  # visitors before their first tokens
        self._behind = 0  # tokens that visitors had while others sat out

    def came(self, sequence: Sequence, *, is_newcomer: bool) -> None:
        """A sequence was given its blocks; a newcomer's flow had none that had."""
        flow = self._alive.get(sequence.flow)
        if flow is None:
            flow = self._returned(sequence)
            if is_newcomer and self._is_visit(flow.since, sequence):
                flow.visits = True
                self._present.append(sequence)
            self._alive[sequence.flow] = flow
        flow.count += 1
        flow.tokens = tokens_to_go(sequence)

    def went(self, sequence: Sequence, now: float) -> None:
        """A sequence gave its blocks back."""
        flow = self._alive[sequence.flow]
        flow.count -= 1
        if not flow.count:
            del self._alive[sequence.flow]
            self._left[sequence.flow] = _Left(now, flow.since, flow.tokens, flow.visits)
            if len(self._left) > MOST_KNOWN:
                del self._left[next(iter(self._left))]

    def may_come(self, now: float) -> bool:
        """Whether the next visit is to be reckoned with."""
        is_on = self._limits.beside_visitors is not None
        return is_on and next(self._expected(now), None) is not None

    def present(self) -> list[Sequence]:
        """Visitors whose prompts are not computed yet."""
        if self._present:
            self._present = [one for one in self._present if _is_before_its_first_token(one)]
        return self._present

    def kept_for_others(self, budget: int) -> int:
        """Tokens of a step that visitors may not have, since others sat out for long enough."""
        return budget // 2 if self._behind > self._limits.max_batch_tokens else 0

    def for_others(self, plan: Plan, now: float) -> int:
        """Tokens of others' prompts that the step may have."""
        taken = self._tokens_of_visitors(plan.rows)
        if taken:
            sits_out = self._behind + taken <= self._limits.max_batch_tokens
            return 0 if sits_out else min(plan.budget, taken)
        smallest = min(self._expected(now), default=None)
        least = self._limits.beside_visitors
        if smallest is None or least is None:
            return plan.budget
        return min(plan.budget, max(least, int(SHARE * smallest)))

    def planned(self, plan: Plan, *, others_wait: bool) -> None:
        """Take down who had what of a step; whether others have prompts to be computed."""
        if not others_wait:
            self._behind = 0
            return
        taken = self._tokens_of_visitors(plan.rows)
        others = sum(row.num_new for row in plan.rows if row.num_new > 1) - taken
        self._behind = max(self._behind + taken - others, 0)

    def _returned(self, sequence: Sequence) -> _Alive:
        left = self._left.pop(sequence.flow, None)
        if left is None or sequence.arrived - left.at >= AWAY_S:
            return _Alive(sequence.arrived, 0)
        return _Alive(left.since, 0)

    def _is_visit(self, since: float, sequence: Sequence) -> bool:
        """Whether it has just come to others that have been at work for a while."""
        if self._limits.beside_visitors is None or since < sequence.arrived:
            return False
        return any(since - flow.since >= AWAY_S for flow in self._alive.values())

    def _expected(self, now: float) -> Iterator[int]:
        """What the prompts of those who visit, or may return, took to compute, in tokens."""
        for flow in self._alive.values():
            if flow.visits and now - flow.since < LATELY_S:  # else it is always there by now
                yield flow.tokens
        for left in islice(reversed(self._left.values()), MOST_ASKED):
            if now - left.at >= LATELY_S:
                return
            if left.visited or now - left.at >= AWAY_S:
                yield left.tokens

    def _tokens_of_visitors(self, rows: Iterable[Row]) -> int:
        if not self._present:
            return 0
        visiting = {id(one) for one in self._present}
        return sum(row.num_new for row in rows if id(row.sequence) in visiting)


def _is_before_its_first_token(sequence: Sequence) -> bool:
    return sequence.lease is not None and sequence.num_computed < sequence.prompt_len
