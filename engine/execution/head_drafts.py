"""The drafts that a model checkpoint's draft head makes after each sample.

The head reads each token of a step together with the next token, so it runs after sampling. It
computes all tokens of the step. Every block with the decoder's KV therefore has the head's KV as
well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.execution.further_drafts import NO_DRAFT, Drafted, Followed, draft_further
from engine.models.forward.decoder import Decoder
from engine.step import SCORE, Launched, Row, Sampled
from engine.transfers import HostCopy
from kernels.attention.batch_layout import BatchLayout

ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The next token of each token of a step.

    `ids` (T,) int64 are the next tokens that are known. `drawn` (S,) int64 has the index in `ids`
    of each sampled token, or T for a sample that has no place in `ids`.
    """

    ids: Tensor
    drawn: Tensor

    def given(self, sampled: Tensor) -> Tensor:
        """Return `ids` (T,) completed by the tokens `sampled` (S,) int64."""
        ids = self.ids.new_empty(len(self.ids) + 1)
        ids[:-1] = self.ids
        return ids.index_copy_(0, self.drawn, sampled)[:-1]


@dataclass(frozen=True, slots=True)
class HeadStep:
    """The draft head's inputs in a launched step. `hidden` (T, H) is the decoder's output."""

    decoder: Decoder
    pool: Sequence[Tensor]
    layout: BatchLayout
    hidden: Tensor
    next: NextTokens
    outputs: Tensor  # (S,) int64, indices of the tokens before the samples
    token_ids: Tensor  # tokens of the step, (T,) int64
    followed: Followed | None = None

    def draft(self, sampled: Tensor) -> Tensor:
        """Launch the draft head.

        Return the head's drafts, (drafts, S) int64, after each token of `sampled` (S,). A missing
        draft is `NO_DRAFT`.
        """
        ids = self.next.given(sampled)
        hidden = self._hidden(ids, self.outputs)
        drafted = self.decoder.logits_of(hidden).argmax(-1)
        if self.followed is None:
            return drafted[None]
        positions = self.layout.positions.index_select(0, self.outputs)
        known = Drafted(sampled, drafted, hidden, positions).at(self.followed.samples)
        further = draft_further(self.decoder, self.pool, self.token_ids, self.followed, known)
        nothing = torch.full_like(drafted, NO_DRAFT)
        places = self.followed.samples
        return torch.stack([drafted, *(nothing.index_copy(0, places, ids) for ids in further)])

    def write(self) -> None:
        """Launch the draft head only to write its KV, in a step that samples nothing."""
        self._hidden(self.next.ids, self.outputs[:0])

    def _hidden(self, ids: Tensor, outputs: Tensor) -> Tensor:
        return self.decoder.draft_hidden(self.hidden, ids, self.layout, self.pool, outputs)


@dataclass(frozen=True, slots=True)
class WithDrafts:
    """A launched step, and the draft head's drafts after each sample. Implements `Launched`."""

    launched: Launched
    drafted: HostCopy  # drafted tokens, (drafts, S)

    def collect(self) -> list[Sampled]:
        """Wait for the step and the drafts. Return the samples with their drafts."""
        return with_drafts(self.launched.collect(), self.drafted.wait().tolist())


def with_drafts(sampled: list[Sampled], drafted: list[list[int]]) -> list[Sampled]:
    """Return the samples with their drafts. `drafted[i]` has draft number i after each sample."""
    return [
        one._replace(drafted=tuple(id_ for id_ in ids if id_ != NO_DRAFT))
        for one, ids in zip(sampled, zip(*drafted, strict=True), strict=True)
    ]


def next_ids_of(rows: Sequence[Row], block_size: int) -> npt.NDArray[np.int32]:
    """Return the known token after each token of all rows.

    The id is 0 if the next token is yet to be sampled or belongs to another namespace.
    """
    unknown = bytes(ID_BYTES)
    parts = (row.token_ids[ID_BYTES:] + (row.next_ids[-ID_BYTES:] or unknown) for row in rows)
    ids, first = np.frombuffer(b"".join(parts), np.int32), 0
    if not any(row.borders for row in rows):
        return ids
    ids = ids.copy()
    for row in rows:
        places = np.frombuffer(row.borders, np.int32) * block_size - 1 - row.start
        ids[first + places[(places >= 0) & (places < row.num_new)]] = 0
        first += row.num_new
    return ids


def drawn_places(
    given: Sequence[Row], outputs: npt.NDArray[np.int64], nowhere: int
) -> npt.NDArray[np.int64]:
    """Return `NextTokens.drawn` for the samples after `outputs` (S,). Scored rows get `nowhere`."""
    scored = sum(row.num_samples for row in given if row.kind is SCORE)
    places = outputs.copy()
    places[len(places) - scored :] = nowhere
    return places
