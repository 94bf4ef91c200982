"""The drafts of a model checkpoint's draft head (multi-token prediction).

The head drafts on the device, in the same step as the sampled token before the draft.
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
    matched: ClassVar[int] = 3  # a head's token is as often wrong as one after so short a match

    def draft(self, known: int, most: int) -> tuple[int, ...]:
        """Return the draft head's tokens if they follow the last known token."""
        after, token_ids = self.sequence.head_draft
        return token_ids[:most] if after == known else ()
