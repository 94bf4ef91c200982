"""The rows of a step, concatenated into the tensors that a decoder reads.

The tensors are built on the host with numpy, with loops over rows but not over tokens, and are
copied to the device at once.

The device fills in a pending token (`feed`) from the sample that the previous step wrote for the
row's batch slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.execution.block_tables import BlockTables
from engine.execution.further_drafts import Followed, FollowedRows, followed_rows
from engine.execution.head_drafts import NextTokens, drawn_places, next_ids_of
from engine.execution.rings import RingTables, ring_rows, ring_slots
from engine.execution.shared_prefixes import Sharing
from engine.step import SCORE, VERIFY, Row, count_decodes
from engine.transfers import HostArray, to_device
from kernels.attention.batch_layout import BatchLayout, SharedPrefix
from kernels.attention.decode.split_sizes import SplitSizes
from kernels.recurrence.state_rows import StateRows
from storage.pools.window_pool import RingShape

Ints = npt.NDArray[np.int64]
RING_FIELDS = ("rings", "ring_ends", "scratch_starts", "window_slots")  # of `RingTables`, in order
FOLLOWED = "followed_"  # prefix of the names of `Followed`'s arrays
Numbers = TypeVar("Numbers", npt.NDArray[np.int32], npt.NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of one step on the device.

    `token_ids` (T,) int64. `outputs` (S,) int64: the flat indices of the tokens after which a token
    is sampled, in row order; `output_slots` (S,) int64: the batch slots of the samples' rows.
    `pending` (P,) int64: the flat indices of the pending tokens; `pending_slots` (P,) int64: the
    batch slots for which these tokens were sampled last. `state_rows`: the rows with the slots of
    their states, if the model has states. `windows`: the layout of the layers whose KV lies in
    rings. `adapters` (T,) int32: the slot of each token's adapter, if a row has an adapter.
    `next_ids` and `drawn`: the fields of `NextTokens`, if a head drafts.
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
    followed: Followed | None = None  # samples after which the head drafts further

    @property
    def next_tokens(self) -> NextTokens:
        """The token after each token of the step. Raises ValueError if no head drafts."""
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
    """Concatenate `rows`: at least one row, decodes first. `tables` has the rows' blocks.

    With `sharing`, decode rows are put in the order of `sharing`; samples stay in the order of
    `rows`. Without `sizes`, no decode's keys are split.
    """
    arrays = _host_batch(rows, tables, block_size, sharing)
    if has_states:
        arrays |= state_fields(in_batch_order(rows, sharing)[0])
    if rings is not None:
        arrays |= ring_fields(in_batch_order(rows, sharing)[0], rings)
    if any(row.adapter for row in rows):
        arrays["adapters"] = adapters_of(in_batch_order(rows, sharing)[0])
    followed = followed_rows(rows, tables, block_size) if has_head else None
    if has_head:
        ids, outputs = next_ids_of(in_batch_order(rows, sharing)[0], block_size), arrays["outputs"]
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


def state_fields(rows: Sequence[Row]) -> dict[str, npt.NDArray[np.int32]]:
    """Return each row's state slots, run and kept tokens, (R,), by the names of `StateRows`."""
    runs, kept = _runs(rows)
    return {
        "read_slots": np.array([row.state_in for row in rows], np.int32),
        "write_slots": np.array([row.state_out for row in rows], np.int32),
        "runs": runs,
        "kept": kept,
    }


def ring_fields(rows: Sequence[Row], shape: RingShape) -> dict[str, HostArray]:
    """Return the fields of `RingTables` of rows in batch order, by the names of `RING_FIELDS`."""
    places = ring_rows(rows, shape)
    slots = ring_slots(rows, places, shape)
    return dict(
        zip(
            RING_FIELDS, (places.rings, places.ring_ends, places.scratch_starts, slots), strict=True
        )
    )


def adapters_of(rows: Sequence[Row]) -> npt.NDArray[np.int32]:
    """Return the slot of each token's adapter, (T,)."""
    without = [min(max(row.adapter_start - row.start, 0), row.num_new) for row in rows]
    slots = np.array([(0, row.adapter) for row in rows], np.int32).ravel()
    counts = [(first, row.num_new - first) for first, row in zip(without, rows, strict=True)]
    return np.repeat(slots, np.array(counts, np.int64).ravel())


def _runs(rows: Sequence[Row]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return `StateRows.runs` and `kept` of rows by token; a VERIFY row's tokens are adjacent."""
    runs, kept = np.ones((2, len(rows)), np.int32)
    first = 0
    for at, row in enumerate(rows):
        if row.kind is not VERIFY:
            continue
        before = rows[at - 1] if at else None
        if before is not None and before.kind is VERIFY and before.lease_id == row.lease_id:
            runs[first] += 1
            runs[at] = first - at
        else:
            first, kept[at] = at, row.state_end - row.start
    return runs, kept


def _state_rows(layout: BatchLayout, tensors: dict[str, Tensor]) -> StateRows:
    """Build the rows of states; move the tensors of `state_fields` out of the dict."""
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
    """Return the arrays of `Followed`, each under the prefix `FOLLOWED` and its field's name."""
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
    """Build `Followed`; move its tensors out of the dict."""
    names = [name for name in tensors if name.startswith(FOLLOWED)]
    return Followed(**{name.removeprefix(FOLLOWED): tensors.pop(name) for name in names})


def _windows(layout: BatchLayout, tensors: dict[str, Tensor], shape: RingShape) -> BatchLayout:
    """Build the layout for rings; move the tensors of `ring_fields` out of the dict."""
    return RingTables(*(tensors.pop(name) for name in RING_FIELDS)).layout(layout, shape)


def _shared_prefix(tensors: dict[str, Tensor], most_rows: int) -> SharedPrefix:
    """Build the shared prefix; move the tensors of `Sharing.fields` out of the dict."""
    names = ("group_starts", "key_ends", "own_starts")
    return SharedPrefix(**{name: tensors.pop(name) for name in names}, max_group_rows=most_rows)


def splits_of(
    sizes: SplitSizes, contexts: npt.NDArray[np.int32], sharing: Sharing | None
) -> npt.NDArray[np.int32]:
    """Compute `BatchLayout.splits` of decodes with contexts (R,), in batch order.

    A group of rows that share a prefix is cut as one item; it has at most `rows_together` rows.
    """
    if sharing is None:
        return sizes.cut(contexts)
    return sizes.cut(contexts - sharing.own_starts(len(contexts)), sharing.key_ends)


def more_samples(rows: Sequence[Row]) -> int:
    """Count the samples beyond each row's first. Only scored rows, the last rows, have several."""
    scored = takewhile(lambda row: row.kind is SCORE, reversed(rows))
    return sum(row.num_samples - 1 for row in scored)


def samples_of(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each sampled token: the token's row, cut just before the sampled token."""
    if not more_samples(rows):
        return [row for row in rows if row.samples]
    return [one for row in rows for one in _each_sample(row)]


def _each_sample(row: Row) -> list[Row]:
    first = row.end - row.num_samples + 1
    return [
        msgspec.structs.replace(row, end=end, new=row.new if end == first else None)
        for end in range(first, row.end + 1)
    ]


def sampled_after(given: Sequence[Row], places: Ints) -> tuple[Ints, Ints | int]:
    """Return the batch place of each sample's row, and how many samples of this row follow."""
    if not more_samples(given):
        return places[np.array([row.samples for row in given], np.bool_)], 0
    counts = np.array([row.num_samples for row in given], np.int64)
    sampling = np.repeat(places, counts)
    return sampling, np.repeat(np.cumsum(counts), counts) - np.arange(1, len(sampling) + 1)


def in_batch_order(
    rows: Sequence[Row], sharing: Sharing | None
) -> tuple[Sequence[Row], npt.NDArray[np.int64]]:
    """Return the rows in batch order, and the place of each of `rows` there, (len(rows),) int64."""
    places = np.arange(len(rows))
    if sharing is None:
        return rows, places
    order = sharing.order.tolist()
    places[order] = np.arange(len(order))
    return [*(rows[index] for index in order), *rows[len(order) :]], places


def _host_batch(
    given: Sequence[Row], tables: BlockTables, block_size: int, sharing: Sharing | None
) -> dict[str, HostArray]:
    """Build the arrays of a `Batch` and of its layout, by field name."""
    rows, order = in_batch_order(given, sharing)
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


def positions_of(rows: Sequence[Row], places: Numbers) -> Numbers:
    """Return the positions of all tokens, (T,), given their `places` among their rows' keys."""
    if not any(row.positions for row in rows):
        return places
    positions, end = places.copy(), 0
    for row in rows:
        start, end = end, end + row.num_new
        if row.positions:
            positions[start:end] = np.frombuffer(row.positions, np.int32)
    return positions


def token_ids_of(rows: Sequence[Row]) -> npt.NDArray[np.int32]:
    """Concatenate the tokens of all rows."""
    return np.frombuffer(b"".join([row.token_ids for row in rows]), np.int32)
