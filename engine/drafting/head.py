"""The drafts of a model checkpoint's draft head (multi-token prediction).

The head runs on the device, in the step that samples the token before the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.drafting.draft import DraftSource
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """The draft head's tokens after a sequence's last token. Implements `Drafter`."""

    sequence: Sequence
    source: ClassVar[DraftSource] = "mtp"
    matched: ClassVar[int] = 3  # head tokens are wrong about as often as tokens after a match of 3

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the draft head's tokens if they follow the last known token."""
        after, token_ids = self.sequence.head_draft
        return token_ids[:most] if after == known else ()
