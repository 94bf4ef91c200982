"""The sampling tables on the device, by batch slot: lists of tokens and counts of tokens.

A request's lists are written once, when it gets its batch slot. Its tokens are counted in the
slot's row when they are sampled. For a step, the host sends only batch slots.

A table is allocated at its first use, as wide as the longest list so far, and is never freed. A
shorter list is padded with its first entry, which does not change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.link.messages import SamplingParams
from engine.sampling.plan import Edits, Penalties
from engine.sampling.slot_params import is_penalised
from engine.step import NewRequest
from engine.transfers import HostArray, to_device

# The amount added for each output token, and the value of a token in the prompt.
IN_OUTPUT, IN_PROMPT = 2, 1
RULED_OUT = float("-inf")


class SlotTables:
    """The tables of one sampler. Used by one thread only. The CUDA stream orders changes."""

    def __init__(self, num_batch_slots: int, vocab_size: int) -> None:
        self._num_batch_slots = num_batch_slots
        self._vocab_size = vocab_size
        self.bias_ids = torch.empty((num_batch_slots, 0), dtype=torch.int32)
        self.biases = torch.empty((num_batch_slots, 0))
        self.banned_ids = torch.empty((num_batch_slots, 0), dtype=torch.int32)
        self.seen = torch.empty((num_batch_slots, 0), dtype=torch.int32)

    def take(
        self,
        requests: Sequence[NewRequest],
        banned: Callable[[SamplingParams], Sequence[int]],
        device: torch.device,
    ) -> None:
        """Write the lists of new requests to their batch slots, over those of earlier requests.

        `banned` returns the tokens that a request must not sample before `min_tokens`.
        """
        biased = [one for one in requests if len(one.sampling.logit_bias)]
        if biased:
            self._take_biases(biased, device)
        banning = [(one, ids) for one in requests if (ids := banned(one.sampling))]
        if banning:
            lists = _even([np.array(ids, np.int32) for _, ids in banning])
            batch_slots = _batch_slots([one for one, _ in banning])
            self.banned_ids = _with_lists(self.banned_ids, *to_device((batch_slots, lists), device))
        penalised = [one for one in requests if is_penalised(one.sampling)]
        if penalised:
            self._take_counts(penalised, device)

    def count(self, penalties: Penalties[Tensor], inputs: Tensor) -> None:
        """Count accepted drafts, and last tokens not counted yet, from `inputs` (R,) int64."""
        batch_slots, rows = penalties.uncounted_slots, penalties.uncounted_rows
        if len(rows):
            self._count(batch_slots * self._vocab_size + inputs[rows])
        if len(penalties.accepted_ids):
            self._count(penalties.accepted_slots * self._vocab_size + penalties.accepted_ids)

    def seen_by(self, penalties: Penalties[Tensor]) -> tuple[Tensor, Tensor]:
        """Return a table of counts, and for each of the K rows with a penalty its table row, (K,).

        The table is `seen`. If rows come after drafts, it is a copy (K, V) that also counts the
        drafts before each row.
        """
        rows = penalties.draft_rows
        if not len(rows):
            return self.seen, penalties.batch_slots
        seen = self.seen.index_select(0, penalties.batch_slots)
        _add_counts(seen, rows * self._vocab_size + penalties.draft_ids)
        return seen, torch.arange(len(seen), device=seen.device)

    def add_biases(self, logits: Tensor, biased: Edits[Tensor]) -> None:
        """Add the biases of the rows' requests to `logits` (R, V), contiguous."""
        flat, index = logits.view(-1), _index(logits, biased, self.bias_ids)
        flat[index] += self.biases[:, : biased.most].index_select(0, biased.batch_slots).view(-1)

    def ban(self, logits: Tensor, banning: Edits[Tensor]) -> None:
        """Set to -inf the logits (R, V), contiguous, of tokens that are still banned."""
        index = _index(logits, banning, self.banned_ids)
        logits.view(-1).index_fill_(0, index, RULED_OUT)

    def _take_biases(self, requests: Sequence[NewRequest], device: torch.device) -> None:
        packed = [one.sampling.logit_bias for one in requests]
        arrays = (
            _batch_slots(requests),
            _even([np.frombuffer(one.token_ids, "<i4") for one in packed]),
            _even([np.frombuffer(one.values, "<f4") for one in packed]),
        )
        batch_slots, token_ids, values = to_device(arrays, device)
        self.bias_ids = _with_lists(self.bias_ids, batch_slots, token_ids)
        self.biases = _with_lists(self.biases, batch_slots, values)

    def _take_counts(self, requests: Sequence[NewRequest], device: torch.device) -> None:
        prompts = [np.frombuffer(one.prompt_ids, np.int32) for one in requests]
        outputs = [np.frombuffer(one.output_ids, np.int32) for one in requests]
        arrays = [_batch_slots(requests)]
        for lists in (prompts, outputs):
            arrays += [np.concatenate(lists), np.array([len(ids) for ids in lists], np.int64)]
        batch_slots, *tokens = to_device(arrays, device)
        if not self.seen.shape[1]:
            shape = (self._num_batch_slots, self._vocab_size)
            self.seen = torch.empty(shape, dtype=torch.int32, device=device)
        self.seen.index_fill_(0, batch_slots, 0)
        self.seen.view(-1).index_fill_(0, self._places(batch_slots, *tokens[:2]), IN_PROMPT)
        self._count(self._places(batch_slots, *tokens[2:]))

    def _places(self, batch_slots: Tensor, token_ids: Tensor, lens: Tensor) -> Tensor:
        """Return flat indices into `seen`. `batch_slots[i]` has the next `lens[i]` tokens."""
        of_batch_slots = batch_slots * self._vocab_size
        # The output size is given, so that the host need not wait for the device to compute it.
        starts = of_batch_slots.repeat_interleave(lens, output_size=len(token_ids))
        return starts + token_ids

    def _count(self, places: Tensor) -> None:
        _add_counts(self.seen, places)


def _add_counts(seen: Tensor, places: Tensor) -> None:
    """Count output tokens at flat indices of a table of counts. Each duplicate counts."""
    times = torch.full((1,), IN_OUTPUT, dtype=torch.int32, device=places.device)
    seen.view(-1).index_add_(0, places, times.expand(len(places)))


def _index(logits: Tensor, edits: Edits[Tensor], token_ids: Tensor) -> Tensor:
    chosen = token_ids[:, : edits.most].index_select(0, edits.batch_slots)
    return (edits.rows[:, None] * logits.shape[1] + chosen).view(-1)


def _batch_slots(requests: Sequence[NewRequest]) -> HostArray:
    return np.array([one.batch_slot for one in requests], np.int64)


def _even(lists: Sequence[HostArray]) -> HostArray:
    """Pad lists to equal length. A shorter list repeats its first entry."""
    longest = max(map(len, lists))
    rows = np.empty((len(lists), longest), lists[0].dtype)
    for row, entries in zip(rows, lists, strict=True):
        row[: len(entries)], row[len(entries) :] = entries, entries[0]
    return rows


def _with_lists(table: Tensor, batch_slots: Tensor, lists: Tensor) -> Tensor:
    width = max(table.shape[1], lists.shape[1])
    table = _as_wide_as(table.to(lists.device), width)
    return table.index_copy_(0, batch_slots, _as_wide_as(lists, width))


def _as_wide_as(lists: Tensor, width: int) -> Tensor:
    missing = width - lists.shape[1]
    if not missing:
        return lists
    filler = lists[:, :1] if lists.shape[1] else lists.new_zeros((len(lists), 1))
    return torch.cat((lists, filler.expand(-1, missing)), 1)
