"""Lays the rows of a step flat, as the tensors that a decoder reads.

Everything is built on the host with numpy, per row at most, and goes to the device in one copy.

A token whose value is pending is left for the device to fill in (`feed`), from what the step
before wrote down for the row's seat.

Knows: rows, leases' block ids, the block size. Does not know: the model, or how tokens are
chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.shared_prefixes import Sharing
from engine.staging import to_device
from engine.step import Row
from kernels.batch_layout import BatchLayout, SharedLevel, SharedPrefix
from kernels.unit_sizes import UnitSizes


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input on the device.

    `token_ids` (T,) int64; `outputs` (S,) int64: the flat index of the last token of every row
    that samples, in row order, and `output_seats` (S,) int64 their seats. The tokens at
    `pending` (P,) int64 are those of `pending_seats` (P,) int64.
    """

    token_ids: Tensor
    layout: BatchLayout
    outputs: Tensor
    output_seats: Tensor
    pending: Tensor
    pending_seats: Tensor

    def feed(self, last_tokens: Tensor) -> None:
        """Put the pending tokens in their places; `last_tokens` (seats,) int64."""
        if self.pending.shape[0]:
            values = last_tokens.index_select(0, self.pending_seats)
            self.token_ids.index_copy_(0, self.pending, values)


@dataclass(frozen=True, slots=True)
class _HostBatch:
    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    output_seats: npt.NDArray[np.int64]
    pending: npt.NDArray[np.int64]
    pending_seats: npt.NDArray[np.int64]
    query_starts: npt.NDArray[np.int32]
    context_lens: npt.NDArray[np.int32]
    block_tables: npt.NDArray[np.int32]


def build_batch(
    rows: Sequence[Row],
    block_size: int,
    device: torch.device,
    sharing: Sharing | None = None,
    sizes: UnitSizes | None = None,
) -> Batch:
    """The flat form of `rows`, at least one, those with one token first.

    With `sharing` the decode rows lie in its order; what is sampled is in the order of `rows` all
    the same. Without `sizes` the keys of no decode are cut. Raises RuntimeError where a row's
    sequence has no lease or no seat.
    """
    host = _host_batch(rows, block_size, sharing)
    arrays = {field.name: getattr(host, field.name) for field in fields(host)}
    arrays |= _shared_fields(sharing, rows)
    if sizes is not None:
        arrays["units"] = units_of(sizes, host.context_lens[: count_decodes(rows)], sharing)
    tensors = dict(zip(arrays, to_device(list(arrays.values()), device), strict=True))
    shared = None if sharing is None else shared_prefix(tensors, sharing.most_rows)
    layout = BatchLayout(
        query_starts=tensors.pop("query_starts"),
        context_lens=tensors.pop("context_lens"),
        block_tables=tensors.pop("block_tables"),
        positions=tensors.pop("positions"),
        slots=tensors.pop("slots"),
        num_decodes=count_decodes(rows),
        max_query_len=max(row.num_new for row in rows),
        max_context_len=int(host.context_lens.max()),
        shared=shared,
        units=tensors.pop("units", None),
    )
    return Batch(layout=layout, **tensors)


def shared_prefix(fields_of: dict[str, Tensor], most_rows: int) -> SharedPrefix:
    """One level of groups, from the tensors of `SharingFields`, which are removed from the dict."""
    level = SharedLevel(
        group_starts=fields_of.pop("group_starts"),
        key_starts=fields_of.pop("key_starts"),
        key_ends=fields_of.pop("key_ends"),
        max_group_rows=most_rows,
    )
    return SharedPrefix((level,), fields_of.pop("own_starts"))


def units_of(
    sizes: UnitSizes, contexts: npt.NDArray[np.int32], sharing: Sharing | None
) -> npt.NDArray[np.int32]:
    """`BatchLayout.units` for decodes of these contexts (R,), in the order of the batch.

    A group of rows that share is one item: it has no more rows than `rows_together` lets it.
    """
    if sharing is None:
        return sizes.cut(contexts)
    return sizes.cut(contexts - sharing.own_starts(len(contexts)), [sharing.key_ends])


def count_decodes(rows: Sequence[Row]) -> int:
    """How many leading rows have one token."""
    return next((index for index, row in enumerate(rows) if row.num_new > 1), len(rows))


def in_batch_order(
    rows: Sequence[Row], sharing: Sharing | None
) -> tuple[Sequence[Row], npt.NDArray[np.int64]]:
    """The rows in the order in which they lie in the batch, and at which place each given one is.

    The places are (len(rows),) int64.
    """
    places = np.arange(len(rows))
    if sharing is None:
        return rows, places
    order = sharing.order.tolist()
    places[order] = np.arange(len(order))
    return [*(rows[index] for index in order), *rows[len(order) :]], places


def _shared_fields(
    sharing: Sharing | None, rows: Sequence[Row]
) -> dict[str, npt.NDArray[np.int32]]:
    if sharing is None:
        return {}
    made = sharing.fields(count_decodes(rows))
    return {field.name: getattr(made, field.name) for field in fields(made)}


def _host_batch(given: Sequence[Row], block_size: int, sharing: Sharing | None) -> _HostBatch:
    rows, places = in_batch_order(given, sharing)
    num_new = np.array([row.num_new for row in rows], dtype=np.int64)
    starts = np.array([row.start for row in rows], dtype=np.int64)
    query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_starts[1:])
    tables = _block_tables(rows)
    row_of_token = np.repeat(np.arange(len(rows)), num_new)
    positions = np.arange(query_starts[-1]) + (starts - query_starts[:-1])[row_of_token]
    blocks = tables[row_of_token, positions // block_size].astype(np.int64)
    samples = np.array([row.samples for row in given], dtype=np.bool_)
    sampling = places[samples]  # where the rows that sample lie
    pending = np.array([row.is_pending for row in rows], dtype=np.bool_)
    seats = np.array([seat_of(row) for row in rows], dtype=np.int64)
    return _HostBatch(
        token_ids=_token_ids(rows),
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        outputs=query_starts[1:][sampling] - 1,
        output_seats=seats[sampling],
        pending=query_starts[1:][pending] - 1,
        pending_seats=seats[pending],
        query_starts=query_starts.astype(np.int32),
        context_lens=(starts + num_new).astype(np.int32),
        block_tables=tables,
    )


def _token_ids(rows: Sequence[Row]) -> npt.NDArray[np.int64]:
    parts = [row.sequence.tokens[row.start : row.end] for row in rows]
    return np.concatenate(parts, dtype=np.int64)


def _block_tables(rows: Sequence[Row]) -> npt.NDArray[np.int32]:
    """Block ids by row and position; behind a row's last one 0, which is a valid id."""
    leased = [blocks_of(row) for row in rows]
    tables = np.zeros((len(rows), max(len(blocks) for blocks in leased)), dtype=np.int32)
    for table, blocks in zip(tables, leased, strict=True):
        table[: len(blocks)] = blocks
    return tables


def blocks_of(row: Row) -> npt.NDArray[np.int32]:
    """The block ids that a row's sequence has; raises RuntimeError where it has none."""
    if row.lease is None:
        raise RuntimeError(f"{row.sequence.request_id} is in a step without a lease")
    return row.lease.blocks


def seat_of(row: Row) -> int:
    """The seat of a row's sequence; raises RuntimeError where it has none."""
    if row.sequence.seat is None:
        raise RuntimeError(f"{row.sequence.request_id} is in a step without a seat")
    return row.sequence.seat
