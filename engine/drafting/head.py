"""Drafts of the head that a checkpoint brings (multi-token prediction).

The head has drafted them on the device, beside the sample that they follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """The tokens that the head expects after a sequence's last one; implements `Drafter`."""

    sequence: Sequence
    source: ClassVar[DraftSource] = "mtp"

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the head's tokens, if they were drafted after the last of the known tokens."""
        after, token_ids = self.sequence.head_draft
        return token_ids[:most] if after == known else ()
