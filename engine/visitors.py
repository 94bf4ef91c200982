"""Visitors: flows that come now and then beside others that are always there, and go first.

    alive    a flood ------------------------------------------->
    visitor       --asks--   reads ...   --asks--   reads ...
                          |<- may return ->|

A new request waits for the step under way, and then for all that shares a step with it. So, as
long as a visitor is here, or one left lately and may return,

    - the prompts of others get a bounded part of a step: a share of the tokens that the smallest
      of those visitors had to compute, but never fewer than a bound below which the fixed cost of
      a step weighs too much;
    - beside a visitor's prompt they get nothing, until the tokens that visitors had in this way
      come to a whole step, and from then on as many as the visitors; what others compute in
      between is subtracted. So they pause for hardly longer than one large step of another flow
      would have taken.

A visit begins with an interactive sequence of a flow that had nothing alive for a while, if others
have been at work for at least as long. A flow that returns at once is one of those that are always
there, and flows that start together are no visitors of each other. Where there are no visitors,
every flow has whole steps.

Knows: since when flows are alive, and when they left; tokens of a step. Does not know: credit
(`queue.py`), seats, or how long anything takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from engine.draft import Draft, StepLimits, tokens_to_go
from engine.sequence import Sequence
from engine.step import Row

AWAY_S = 0.02  # a flow that was away for less has been there all the time
LATELY_S = 30.0  # a reader of an answer asks again within this time; a visit lasts no longer
SHARE = 1 / 8  # of a visitor's own tokens
MAX_EXPECTED = 32  # flows that may return: only the last ones to leave are looked at
MAX_LEFT = 4096  # flows that left and are remembered


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
    """The flows that visit, or may return for a visit. One owner thread."""

    def __init__(self, limits: StepLimits) -> None:
        self._limits = limits
        self._alive: dict[str, _Alive] = {}
        self._left: dict[str, _Left] = {}  # flows with nothing alive, in the order they left
        self._present: list[Sequence] = []  # visitors before their first tokens
        self._behind = 0  # tokens that visitors had while others paused

    def came(self, sequence: Sequence, *, is_newcomer: bool) -> None:
        """A sequence was given blocks; `is_newcomer`: its flow had no other sequence with any."""
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
            if len(self._left) > MAX_LEFT:
                del self._left[next(iter(self._left))]

    def is_alive(self, flow: str) -> bool:
        """Whether a flow has a sequence with blocks."""
        return flow in self._alive

    def may_come(self, now: float) -> bool:
        """Whether a visitor is here or may return soon."""
        is_on = self._limits.beside_visitors is not None
        return is_on and next(self._expected(now), None) is not None

    def present(self) -> list[Sequence]:
        """Visitors whose prompts are not computed yet."""
        if self._present:
            self._present = [one for one in self._present if _is_before_its_first_token(one)]
        return self._present

    def kept_for_others(self, budget: int) -> int:
        """Tokens of a step that visitors may not have, since others have paused long enough."""
        return budget // 2 if self._behind > self._limits.max_batch_tokens else 0

    def for_others(self, draft: Draft, now: float) -> int:
        """How many tokens of others' prompts the step may have."""
        taken = self._tokens_of_visitors(draft.rows)
        if taken:
            others_pause = self._behind + taken <= self._limits.max_batch_tokens
            return 0 if others_pause else min(draft.budget, taken)
        smallest = min(self._expected(now), default=None)
        least = self._limits.beside_visitors
        if smallest is None or least is None:
            return draft.budget
        return min(draft.budget, max(least, int(SHARE * smallest)))

    def decided(self, draft: Draft, *, others_wait: bool) -> None:
        """Note which tokens of a step were visitors'; `others_wait`: others have prompts to go."""
        if not others_wait:
            self._behind = 0
            return
        taken = self._tokens_of_visitors(draft.rows)
        others = sum(row.num_new for row in draft.rows if row.num_new > 1) - taken
        self._behind = max(self._behind + taken - others, 0)

    def _returned(self, sequence: Sequence) -> _Alive:
        left = self._left.pop(sequence.flow, None)
        if left is None or sequence.arrived - left.at >= AWAY_S:
            return _Alive(sequence.arrived, 0)
        return _Alive(left.since, 0)

    def _is_visit(self, since: float, sequence: Sequence) -> bool:
        """Whether it has just come, beside others that have been at work for a while."""
        if self._limits.beside_visitors is None or since < sequence.arrived:
            return False
        return any(since - flow.since >= AWAY_S for flow in self._alive.values())

    def _expected(self, now: float) -> Iterator[int]:
        """The prompt tokens to compute of each flow that visits, or lately did and may return."""
        for flow in self._alive.values():
            if flow.visits and now - flow.since < LATELY_S:  # else it is no visitor any more
                yield flow.tokens
        for left in islice(reversed(self._left.values()), MAX_EXPECTED):
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
