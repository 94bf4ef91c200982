"""The rows of a step, concatenated into the tensors that a decoder reads.

The host builds the tensors with NumPy, and sends them to the device in one copy. A pending token is
not known on the host yet. The device fills it in (`feed`) from the sample of the previous step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.execution.block_tables import BlockTables
from engine.execution.further_drafts import Followed, FollowedRows, followed_rows
from engine.execution.head_drafts import NextTokens, drawn_places, next_ids_of
from engine.execution.rings import RingTables
from engine.execution.row_fields import (
    RING_FIELDS,
    adapters_of,
    in_batch_order,
    positions_of,
    ring_fields,
    sampled_after,
    splits_of,
    state_fields,
    token_ids_of,
)
from engine.execution.shared_prefixes import Sharing
from engine.step import Row, count_decodes
from engine.transfers import HostArray, to_device
from kernels.attention.batch_layout import BatchLayout, SharedPrefix
from kernels.attention.decode.split_sizes import SplitSizes
from kernels.recurrence.state_rows import StateRows
from storage.pools.window_pool import RingShape

FOLLOWED = "followed_"


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one step on the device.

    `token_ids` (T,) int64 are the tokens of all rows. `outputs` (S,) int64 are the indices, in row
    order, of the tokens after which a token is sampled. `output_slots` (S,) int64 are the batch
    slots of these samples. `pending` (P,) int64 are the indices of the pending tokens.
    `pending_slots` (P,) int64 are the batch slots for which these tokens were sampled. `state_rows`
    are the slots of the recurrent states, if the model has any. `windows` is the layout of the
    layers whose KV is in ring buffers. `adapters` (T,) int32 are the slots of the tokens' adapters,
    if any. `next_ids` and `drawn` are the fields of `NextTokens`, if the model has a draft head.
    """

    token_ids: Tensor
    layout: BatchLayout
    outputs: Tensor
    output_slots: Tensor
    pending: Tensor
    pending_slots: Tensor
    state_rows: StateRows | None = None
    windows: BatchLayout | None = None
    adapters: Tensor | None = None
    next_ids: Tensor | None = None
    drawn: Tensor | None = None
    followed: Followed | None = None

    @property
    def next_tokens(self) -> NextTokens:
        """The next token of each token of the step. Raises ValueError without a draft head."""
        if self.next_ids is None or self.drawn is None:
            raise ValueError("the batch was built without a head's input")
        return NextTokens(self.next_ids, self.drawn)

    def feed(self, last_tokens: Tensor) -> None:
        """Fill in the pending tokens from `last_tokens` (batch slots,) int64."""
        if self.pending.shape[0]:
            values = last_tokens.index_select(0, self.pending_slots)
            self.token_ids.index_copy_(0, self.pending, values)


def build_batch(
    rows: Sequence[Row],
    tables: BlockTables,
    block_size: int,
    device: torch.device,
    sharing: Sharing | None = None,
    sizes: SplitSizes | None = None,
    *,
    has_states: bool = False,
    has_head: bool = False,
    rings: RingShape | None = None,
) -> Batch:
    """Concatenate `rows` into a batch. There is at least one row, and decodes come first.

    `tables` has the rows' blocks. Decode rows are put in the order of `sharing`, but samples stay
    in the order of `rows`. Without `sizes`, attention does not split the keys of any decode.
    """
    ordered, places = in_batch_order(rows, sharing)
    arrays = _host_batch(rows, ordered, places, tables, block_size)
    if has_states:
        arrays |= state_fields(ordered)
    if rings is not None:
        arrays |= ring_fields(ordered, rings)
    if any(row.adapter for row in rows):
        arrays["adapters"] = adapters_of(ordered)
    followed = followed_rows(rows, tables, block_size) if has_head else None
    if has_head:
        ids, outputs = next_ids_of(ordered, block_size), arrays["outputs"]
        arrays |= {"next_ids": ids.astype(np.int64), "drawn": drawn_places(rows, outputs, len(ids))}
    if followed is not None:
        arrays |= _followed_fields(followed, tables, arrays, sizes)
    contexts, decodes = arrays["context_lens"], count_decodes(rows)
    if sharing is not None:
        arrays |= sharing.fields(decodes)
    if sizes is not None:
        arrays["splits"] = splits_of(sizes, contexts[:decodes], sharing)
    tensors = dict(zip(arrays, to_device(list(arrays.values()), device), strict=True))
    layout = BatchLayout(
        query_starts=tensors.pop("query_starts"),
        context_lens=tensors.pop("context_lens"),
        block_tables=tensors.pop("block_tables"),
        positions=tensors.pop("positions"),
        slots=tensors.pop("slots"),
        num_decodes=decodes,
        max_context_len=int(contexts.max()),
        shared=None if sharing is None else _shared_prefix(tensors, sharing.most_rows),
        splits=tensors.pop("splits", None),
    )
    state_rows = _state_rows(layout, tensors) if has_states else None
    windows = None if rings is None else _windows(layout, tensors, rings)
    given = None if followed is None else _followed(tensors)
    return Batch(layout=layout, state_rows=state_rows, windows=windows, followed=given, **tensors)


def _state_rows(layout: BatchLayout, tensors: dict[str, Tensor]) -> StateRows:
    return StateRows(
        row_starts=layout.query_starts,
        context_lens=layout.context_lens,
        read_slots=tensors.pop("read_slots"),
        write_slots=tensors.pop("write_slots"),
        runs=tensors.pop("runs"),
        kept=tensors.pop("kept"),
        num_decodes=layout.num_decodes,
    )


def _followed_fields(
    rows: FollowedRows,
    tables: BlockTables,
    arrays: dict[str, HostArray],
    sizes: SplitSizes | None,
) -> dict[str, HostArray]:
    fields: dict[str, HostArray] = {
        "samples": rows.samples,
        "firsts": rows.firsts,
        "compared": rows.compared(arrays["outputs"], len(arrays["token_ids"])),
        "ends": rows.ends.astype(np.int32),
        "tables": tables.of(rows.batch_slots),
    }
    if sizes is not None:
        fields["splits"] = rows.splits(sizes)
    return {FOLLOWED + name: values for name, values in fields.items()}


def _followed(tensors: dict[str, Tensor]) -> Followed:
    names = [name for name in tensors if name.startswith(FOLLOWED)]
    return Followed(**{name.removeprefix(FOLLOWED): tensors.pop(name) for name in names})


def _windows(layout: BatchLayout, tensors: dict[str, Tensor], shape: RingShape) -> BatchLayout:
    return RingTables(*(tensors.pop(name) for name in RING_FIELDS)).layout(layout, shape)


def _shared_prefix(tensors: dict[str, Tensor], most_rows: int) -> SharedPrefix:
    names = ("group_starts", "key_ends", "own_starts")
    return SharedPrefix(**{name: tensors.pop(name) for name in names}, max_group_rows=most_rows)


def _host_batch(
    given: Sequence[Row],
    rows: Sequence[Row],
    order: npt.NDArray[np.int64],
    tables: BlockTables,
    block_size: int,
) -> dict[str, HostArray]:
    """Make the fields that every batch has. `rows` are the `given` rows in batch order."""
    starts = np.array([row.start for row in rows], dtype=np.int64)
    ends = np.array([row.end for row in rows], dtype=np.int64)
    num_new = ends - starts
    query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_starts[1:])
    batch_slots = np.array([row.batch_slot for row in rows], dtype=np.int64)
    block_tables = tables.of(batch_slots)
    row_of_token = np.repeat(np.arange(len(rows)), num_new)
    places = np.arange(query_starts[-1]) + (starts - query_starts[:-1])[row_of_token]
    blocks = block_tables[row_of_token, places // block_size].astype(np.int64)
    sampling, following = sampled_after(given, order)
    pending = np.array([row.is_pending for row in rows], dtype=np.bool_)
    return {
        "token_ids": token_ids_of(rows).astype(np.int64),
        "positions": positions_of(rows, places),
        "slots": blocks * block_size + places % block_size,
        "outputs": query_starts[1:][sampling] - 1 - following,
        "output_slots": batch_slots[sampling],
        "pending": query_starts[1:][pending] - 1,
        "pending_slots": batch_slots[pending],
        "query_starts": query_starts.astype(np.int32),
        "context_lens": ends.astype(np.int32),
        "block_tables": block_tables,
    }
