"""The second and later drafts of a checkpoint's draft head, each computed from the draft before.

The head runs again, on its own hidden state and its own draft, at the next position:

    hidden state of the decoder at p, sample at p + 1     -> draft at p + 2, state of the head
    state of the head,                draft at p + 2      -> draft at p + 3, ...

The head writes keys after the sequence's last computed token. A later step overwrites these keys.
Further drafts are needed only after one sample of a row, the sample after the last accepted draft.
Only the device knows this sample. The head therefore runs once for every sample of the row, always
with the inputs of the needed sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.execution.block_tables import BlockTables
from engine.models.forward.decoder import Decoder
from engine.step import SCORE, Row
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.decode.split_sizes import SplitSizes

Ints = npt.NDArray[np.int64]

FURTHER = 2  # number of drafts that the draft head makes after its first draft

# The maximum number of samples of a step with further drafts. Larger steps verify no drafts.
MOST_FOLLOWED = 64
NO_DRAFT = -1  # marks a missing draft in tensors of drafted token ids


@dataclass(frozen=True, slots=True)
class Followed:
    """The A samples of a step after which the draft head makes further drafts.

    `samples` (A,) int64 are the indices of these samples among the step's samples. `firsts` (A,)
    int64 has, for each sample, the index of the first sample of its row. `compared` (A,) int64 has
    the index of the draft with which the sample is compared, among the step's T tokens, or T
    without a draft. `ends` (A,) int32 has the number of tokens before the sample, or 0 for padding.
    `tables` (A, blocks) int32 are the blocks of the samples' sequences. `splits` is as in
    `BatchLayout`, for contexts that are `FURTHER` tokens longer.
    """

    samples: Tensor
    firsts: Tensor
    compared: Tensor
    ends: Tensor
    tables: Tensor
    splits: Tensor | None = None

    def chosen(self, token_ids: Tensor, sampled: Tensor) -> Tensor:
        """Return for each sample the index, (A,) int64, of its row's last valid sample.

        A row's samples are valid up to the first that differs from its draft.

        `token_ids` (T,) are the step's tokens, `sampled` (A,) the sampled tokens.
        """
        given = torch.cat((token_ids, token_ids.new_full((1,), NO_DRAFT)))
        differs = sampled != given.index_select(0, self.compared)
        before = differs.cumsum(0) - differs.long()
        is_chosen = differs & (before == before.index_select(0, self.firsts))
        places = torch.arange(len(sampled), device=sampled.device)
        chosen = torch.zeros_like(places).index_add_(0, self.firsts, places * is_chosen)
        return chosen.index_select(0, self.firsts)

    def layout(self, ends: Tensor, positions: Tensor, block_size: int) -> BatchLayout:
        """Return the layout of A rows of one token at `positions`. Contexts have `ends` tokens."""
        count, places = len(ends), (ends - 1).long()
        blocks = self.tables.gather(1, (places // block_size)[:, None])[:, 0].long()
        return BatchLayout(
            query_starts=torch.arange(count + 1, dtype=torch.int32, device=ends.device),
            context_lens=ends,
            block_tables=self.tables,
            positions=positions,
            slots=blocks * block_size + places % block_size,
            num_decodes=count,
            max_context_len=self.tables.shape[1] * block_size,
            splits=self.splits,
        )


@dataclass(frozen=True, slots=True)
class Drafted:
    """The outputs of the decoder and the draft head at A samples, from which drafts continue.

    `sampled` and `drafted` are (A,) int64. `hidden` (A, H) is the head's hidden state. `positions`
    (A,) int64 are the positions of the tokens before the samples.
    """

    sampled: Tensor
    drafted: Tensor
    hidden: Tensor
    positions: Tensor

    def at(self, places: Tensor) -> Drafted:
        """Return the outputs at the samples with the indices `places`."""
        given = self.sampled, self.drafted, self.hidden, self.positions
        return Drafted(*(one.index_select(0, places) for one in given))


def draft_further(
    decoder: Decoder,
    pool: Sequence[Tensor],
    token_ids: Tensor,
    followed: Followed,
    drafted: Drafted,
) -> list[Tensor]:
    """Launch the draft head `FURTHER` times.

    Return the drafts (A,) of each launch. Only the last valid sample of each row gets a draft.
    Other samples get `NO_DRAFT`.
    """
    chosen = followed.chosen(token_ids, drafted.sampled)
    places = torch.arange(len(chosen), device=chosen.device)
    is_followed = (chosen == places) & (followed.ends > 0)
    last = drafted.at(chosen)
    ids, hidden, ends, found = last.drafted, last.hidden, followed.ends[chosen], list[Tensor]()
    for ahead in range(1, FURTHER + 1):
        positions = (last.positions + ahead).clamp_(max=decoder.num_positions - 1)
        layout = followed.layout(ends + ahead, positions, pool[0].shape[3])
        hidden = decoder.draft_hidden(hidden, ids, layout, pool, places)
        ids = decoder.logits_of(hidden).argmax(-1)
        found.append(torch.where(is_followed, ids, NO_DRAFT))
    return found


@dataclass(frozen=True, slots=True)
class FollowedRows:
    """The fields of `Followed` on the host.

    `nexts` (A,) has the index of the row's next sample, or -1. `longest` (A,) has the context
    length of the row's last token.
    """

    samples: Ints
    firsts: Ints
    nexts: Ints
    ends: Ints
    longest: Ints
    batch_slots: Ints

    def compared(self, outputs: Ints, nowhere: int) -> Ints:
        """Return `Followed.compared`.

        `outputs` (S,) are the indices of the tokens after which a token is sampled.
        """
        return np.where(self.nexts < 0, nowhere, outputs[self.nexts])

    def splits(self, sizes: SplitSizes) -> npt.NDArray[np.int32]:
        """Return `Followed.splits`."""
        return sizes.cut((self.longest + FURTHER).astype(np.int32))


def followed_rows(
    given: Sequence[Row], tables: BlockTables, block_size: int
) -> FollowedRows | None:
    """Find the samples after which the draft head makes further drafts, or return None.

    Each row of the step has one token. A sequence gets further drafts only if it has blocks for
    `FURTHER` more tokens. After a step with more than `MOST_FOLLOWED` samples, the head makes no
    further drafts.
    """
    rows = [row for row in given if row.samples and row.kind is not SCORE]
    if not 0 < len(rows) <= MOST_FOLLOWED:
        return None
    leases, ends, batch_slots = np.array(
        [(row.lease_id, row.end, row.batch_slot) for row in rows], np.int64
    ).T
    is_first = np.append(True, leases[1:] != leases[:-1])
    starts, run = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    longest = ends[np.append(starts[1:], len(rows)) - 1][run]
    fits = longest + FURTHER <= tables.num_blocks[batch_slots] * block_size
    if not fits.any():
        return None
    samples = np.flatnonzero(fits)
    nexts = np.where(np.append(is_first[1:], True), -1, np.arange(1, len(rows) + 1))
    places = np.cumsum(fits) - 1
    return FollowedRows(
        samples=samples,
        firsts=places[starts[run]][samples],
        nexts=nexts[samples],
        ends=ends[samples],
        longest=longest[samples],
        batch_slots=batch_slots[samples],
    )
