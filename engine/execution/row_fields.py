"""The fields of a step's rows as NumPy arrays, for eager batches and captured graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.execution.rings import ring_rows, ring_slots
from engine.execution.shared_prefixes import Sharing
from engine.step import SCORE, VERIFY, Row
from engine.transfers import HostArray
from kernels.attention.decode.split_sizes import SplitSizes
from storage.pools.window_pool import RingShape

Ints = npt.NDArray[np.int64]
STATE_FIELDS = ("read_slots", "write_slots", "runs", "kept")
RING_FIELDS = ("rings", "ring_ends", "scratch_starts", "window_slots")
Numbers = TypeVar("Numbers", npt.NDArray[np.int32], npt.NDArray[np.int64])


def state_fields(rows: Sequence[Row]) -> dict[str, npt.NDArray[np.int32]]:
    """Return the fields of `StateRows` by name, (R,) each: slots of states, runs, kept tokens."""
    reads = np.array([row.state_in for row in rows], np.int32)
    writes = np.array([row.state_out for row in rows], np.int32)
    return dict(zip(STATE_FIELDS, (reads, writes, *_runs(rows)), strict=True))


def ring_fields(rows: Sequence[Row], shape: RingShape) -> dict[str, HostArray]:
    """Return the fields of `RingTables` by name, with rows in batch order."""
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


def splits_of(
    sizes: SplitSizes, contexts: npt.NDArray[np.int32], sharing: Sharing | None
) -> npt.NDArray[np.int32]:
    """Compute `BatchLayout.splits` of decodes with contexts (R,), in batch order.

    The keys that a group of rows shares are split as one item.
    """
    if sharing is None:
        return sizes.cut(contexts)
    return sizes.cut(contexts - sharing.own_starts(len(contexts)), sharing.key_ends)


def more_samples(rows: Sequence[Row]) -> int:
    """Count the samples beyond each row's first. Only scored rows have several samples."""
    scored = takewhile(lambda row: row.kind is SCORE, reversed(rows))
    return sum(row.num_samples - 1 for row in scored)


def samples_of(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each sampled token: its row, cut to the tokens before the sampled one."""
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
    """Return the batch index of each sample's row, and how many samples of this row follow."""
    if not more_samples(given):
        return places[np.array([row.samples for row in given], np.bool_)], 0
    counts = np.array([row.num_samples for row in given], np.int64)
    sampling = np.repeat(places, counts)
    return sampling, np.repeat(np.cumsum(counts), counts) - np.arange(1, len(sampling) + 1)


def in_batch_order(
    rows: Sequence[Row], sharing: Sharing | None
) -> tuple[Sequence[Row], npt.NDArray[np.int64]]:
    """Return the rows in batch order, and each row's index in that order, (len(rows),) int64."""
    places = np.arange(len(rows))
    if sharing is None:
        return rows, places
    order = sharing.order.tolist()
    places[order] = np.arange(len(order))
    return [*(rows[index] for index in order), *rows[len(order) :]], places


def positions_of(rows: Sequence[Row], places: Numbers) -> Numbers:
    """Return the positions (T,) of all tokens, given their indices `places` in their sequences."""
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
