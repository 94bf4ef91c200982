"""Drafts of the head that a checkpoint brings (multi-token prediction): one token a step.

The head has drafted it on the device, beside the sample that it follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """The token that the head expects after a sequence's last one; implements `Drafter`."""

    sequence: Sequence
    source: ClassVar[DraftSource] = "mtp"

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the head's token, if it was drafted after the last of the known tokens."""
        after, token_id = self.sequence.head_draft
        return () if after != known or token_id is None or not most else (token_id,)
