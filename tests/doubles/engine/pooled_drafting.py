"""Drafts from earlier answers: from a tenant's own, or from one pool of all tenants.

The second is what an engine must not do: one tenant's answers make another's faster, if they are
asked the same. Tests have it so that a leak is there to be found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence


@dataclass
class PooledDrafting:
    """Drafts what was answered to the same prompt before. Implements `Drafting`."""

    is_shared: bool  # one pool for all flows
    most: int = 15
    _answers: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        """Return whether any of the sequences has an answer in its pool."""
        return any(self._key(one) in self._answers for one in decodes)

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Draft the rest of the earlier answer, if it began like this one."""
        drafts = {}
        for sequence in decodes:
            answer, begun = self._answers.get(self._key(sequence), []), sequence.num_output
            rest = answer[begun : begun + self.most]
            if rest and answer[:begun] == sequence.output_ids.tolist():
                drafts[sequence] = Draft(tuple(rest), "tree")
        return drafts

    def ended(self, sequence: Sequence) -> None:
        """Keep the answer."""
        self._answers[self._key(sequence)] = sequence.output_ids.tolist()

    def _key(self, sequence: Sequence) -> tuple[str, bytes]:
        prompt = sequence.tokens[: sequence.prompt_len].tobytes()
        return "" if self.is_shared else sequence.flow, prompt
