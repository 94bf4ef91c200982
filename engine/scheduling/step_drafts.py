"""The drafts of a step's decodes: which sequences may have drafts, and how many drafts fit.

Elsewhere: the choice of drafts that save time (`engine.drafting`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from engine.drafting.draft import Draft, Drafting
from engine.scheduling.step_builder import StepLimits
from engine.scheduling.step_times import StepShape, StepTimes
from engine.sequences.sequence import Sequence

# The maximum number of rows in a step that has drafts. In a larger step, a drafted token takes as
# much time as a further row.
MOST_DRAFTED_ROWS = 64


@dataclass(frozen=True, slots=True)
class StepDrafts:
    """The drafts of the decodes of one step."""

    drafting: Drafting
    limits: StepLimits
    times: StepTimes

    def may_have(self, rows: int) -> bool:
        """Return whether a step of `rows` rows may have drafts."""
        return 0 < rows <= min(MOST_DRAFTED_ROWS, self.limits.max_running - 1)

    def prepare(self, sequence: Sequence) -> None:
        """Prepare drafts for a sequence, unless its next token is its last."""
        if sequence.num_tokens + 1 < len(sequence.tokens) and _may_have_drafts(sequence):
            self.drafting.prepare(sequence)

    def are_likely(self, decodes: list[Sequence]) -> bool:
        """Return whether good drafts are likely. The last tokens of the decodes may be pending."""
        drafted = [one for one in decodes if _may_have_drafts(one)]
        return bool(drafted) and self.drafting.is_worth_waiting(drafted)

    def propose(
        self, decodes: list[Sequence], target_s: float | None = None
    ) -> dict[Sequence, Draft]:
        """Return drafts for the decodes. The drafted tokens are at most the free batch slots.

        The step then fits the largest captured graph. With a gap target, the drafted tokens are
        also bounded by the step's predicted seconds.
        """
        drafted = [one for one in decodes if _may_have_drafts(one)]
        if not drafted or any(one.num_pending for one in drafted):
            return {}
        rows = sum(1 + one.num_again for one in decodes)
        room = self.limits.max_running - rows
        if target_s is not None:
            keys = sum(one.num_tokens for one in decodes)
            room = self._within(target_s, StepShape(rows, keys), room)
        drafts = dict[Sequence, Draft]()
        for sequence, draft in self.drafting.propose(drafted).items():
            most = max(min(room, len(sequence.tokens) - sequence.num_tokens - 1), 0)
            if len(draft.token_ids) > most:
                draft = draft._replace(token_ids=draft.token_ids[:most])
            if draft.token_ids:
                drafts[sequence] = draft
                room -= len(draft.token_ids)
        return drafts

    def _within(self, target_s: float, decodes: StepShape, most: int) -> int:
        """Return how many drafted tokens, at most `most`, let the step meet the target.

        Before steps are measured, they are predicted to take no time.
        """

        def seconds(drafted: int) -> float:
            return self.times.seconds(decodes._replace(decodes=decodes.decodes + drafted))

        bound = target_s / self.times.late_ratio
        return bisect_right(range(max(most, 0) + 1), bound, key=seconds) - 1


def _may_have_drafts(sequence: Sequence) -> bool:
    """Return whether tokens may be drafted. None may be drafted after an overwritten state."""
    states = None if sequence.lease is None else sequence.lease.states
    return sequence.drafts and not (states is not None and states.overwrites)
