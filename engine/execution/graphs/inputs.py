"""The inputs of a captured graph: a flat int32 tensor that each step fills by one copy.

A step fills the unused part of its bucket with padding: decodes without keys, and rows without
tokens.

    row    | d | d | d | - | - |   p   |  p  |  -  |      d: decodes, p: rows with more tokens,
    token  | 0   1   2   3   4 | 5 6 7 | 8 9 |            -: padding
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.execution.block_tables import BlockTables
from engine.execution.further_drafts import followed_rows
from engine.execution.graphs.bucket import GraphBucket
from engine.execution.head_drafts import drawn_places, next_ids_of
from engine.execution.rings import ALL_IN_RING
from engine.execution.row_fields import (
    adapters_of,
    in_batch_order,
    positions_of,
    ring_fields,
    sampled_after,
    splits_of,
    state_fields,
    token_ids_of,
)
from engine.execution.shared_prefixes import Sharing, nobody_shares
from engine.sampling.plan import Randomness
from engine.step import Row, count_decodes
from engine.transfers import HostArray, host_buffer
from kernels.attention.decode.split_sizes import SplitSizes
from storage.pools.window_pool import RingShape

Ints = npt.NDArray[np.int32]


class StepInputs:
    """The inputs of one bucket's captured graph. All buckets share the tensor `flat`."""

    def __init__(
        self,
        bucket: GraphBucket,
        flat: Tensor,
        tables: BlockTables,
        block_size: int,
        sizes: SplitSizes,
        rings: RingShape | None = None,
    ) -> None:
        self.bucket = bucket
        self._rings = rings
        self._sizes = sizes
        self._places = bucket.offsets()
        self._flat = flat[: bucket.total]
        self._tables = tables
        self._block_size = block_size
        self._padding = self._padded()
        self._flat.copy_(torch.from_numpy(self._padding))

    def field(self, name: str) -> Tensor:
        """Return the part of the flat tensor that holds a field."""
        return self._flat[self._places[name]]

    def wide(self) -> dict[str, Tensor]:
        """Return the fields that kernels read as int64. One copy on the device converts all."""
        end = self._places["output_slots"].stop
        numbers = self._flat[:end].long()
        return {name: numbers[at] for name, at in self._places.items() if at.stop <= end}

    def fill(
        self,
        rows: Sequence[Row],
        draw: Randomness[HostArray] | None,
        sharing: Sharing | None = None,
    ) -> None:
        """Copy a step's block tables and then its fields to the device, without waiting.

        `sharing` orders the decodes if the bucket has shared prefixes. Outputs and `draw` are in
        the order of `rows`.
        """
        staging = host_buffer(self._flat.shape, torch.int32, self._flat.device)
        numbers = staging.numpy()
        np.copyto(numbers, self._padding)
        parts = {name: numbers[place] for name, place in self._places.items()}
        self._fill_rows(parts, rows, sharing)
        if sharing is not None:
            for name, values in sharing.fields(self.bucket.num_decodes).items():
                parts[name][:] = values
        if draw is not None:
            parts["keys"][: draw.keys.size] = draw.keys.reshape(-1)
            parts["temperature"].view(np.float32)[: len(draw.temperature)] = draw.temperature
        self._flat.copy_(staging, non_blocking=True)

    def _padded(self) -> Ints:
        numbers = np.zeros(self.bucket.total, np.int32)
        nobody = self._tables.nobody
        scratch = int(self._tables.host[nobody, 0]) * self._block_size
        nobody_together = nobody_shares(self.bucket.group_rows) if self.bucket.group_rows else None
        fillers: dict[str, int | Ints] = {
            "pending_slots": nobody,
            "table_slots": nobody,
            "output_slots": nobody,
            "slots": scratch,
            **(dict.fromkeys(("runs", "kept"), 1) if self.bucket.has_states else {}),
            **({"ring_ends": ALL_IN_RING} if self.bucket.has_rings else {}),
            **({"drawn": self.bucket.num_tokens} if self.bucket.has_head else {}),
            **(self._nothing_followed() if self.bucket.follows else {}),
            "query_starts": np.minimum(
                np.arange(self.bucket.num_rows + 1, dtype=np.int32),
                np.int32(self.bucket.num_decodes),
            ),
            "units": splits_of(self._sizes, np.zeros(0, np.int32), nobody_together).reshape(-1),
        }
        if nobody_together is not None:
            fillers |= nobody_together.fields(self.bucket.num_decodes)
        for name, value in fillers.items():
            numbers[self._places[name]] = value
        return numbers

    def _nothing_followed(self) -> dict[str, int | Ints]:
        return {
            "followed_firsts": np.arange(self.bucket.num_samples, dtype=np.int32),
            "compared": self.bucket.num_tokens,
            "followed_slots": self._tables.nobody,
            "followed_splits": self._sizes.cut(np.zeros(0, np.int32)).reshape(-1),
        }

    def _fill_rows(
        self, parts: dict[str, Ints], given: Sequence[Row], sharing: Sharing | None
    ) -> None:
        rows, places = in_batch_order(given, sharing)
        decodes = count_decodes(rows)
        batch_slots = np.array([row.batch_slot for row in rows], np.int32)
        ends = np.array([row.end for row in rows], np.int32)
        sampling, following = sampled_after(given, places)
        pending = np.array([row.is_pending for row in rows], np.bool_)
        place = np.arange(len(rows))
        place[decodes:] += self.bucket.num_decodes - decodes
        last = self._fill_tokens(parts, rows, decodes, batch_slots)
        if self.bucket.has_adapters:
            self._fill_adapters(parts["adapters"], rows, decodes)
        parts["pending_slots"][last[pending]] = batch_slots[pending]
        parts["context_lens"][place] = ends
        if decodes:
            parts["units"][:] = splits_of(self._sizes, ends[:decodes], sharing).reshape(-1)
        parts["table_slots"][place] = batch_slots
        if self.bucket.has_states:
            for name, values in state_fields(rows).items():
                parts[name][place] = values
        if self._rings is not None:
            self._fill_rings(parts, rows, place, self._rings)
        parts["outputs"][: len(sampling)] = last[sampling] - following
        if self.bucket.has_head:
            outputs, nowhere = last[sampling].astype(np.int64) - following, self.bucket.num_tokens
            parts["drawn"][: len(sampling)] = drawn_places(given, outputs, nowhere)
            self._fill_next(parts["next_ids"], rows, decodes)
            if self.bucket.follows:
                self._fill_followed(parts, given, outputs)
        parts["output_slots"][: len(sampling)] = batch_slots[sampling]

    def _fill_rings(
        self,
        parts: dict[str, Ints],
        rows: Sequence[Row],
        place: npt.NDArray[np.int64],
        shape: RingShape,
    ) -> None:
        fields, first = ring_fields(rows, shape), self.bucket.num_decodes
        slots, decodes = fields.pop("window_slots"), count_decodes(rows)
        for name, values in fields.items():
            parts[name][place] = values
        parts["window_slots"][:decodes] = slots[:decodes]
        parts["window_slots"][first : first + len(slots) - decodes] = slots[decodes:]

    def _fill_next(self, places: Ints, rows: Sequence[Row], decodes: int) -> None:
        ids, first = next_ids_of(rows, self._block_size), self.bucket.num_decodes
        places[:decodes] = ids[:decodes]
        places[first : first + len(ids) - decodes] = ids[decodes:]

    def _fill_followed(
        self, parts: dict[str, Ints], given: Sequence[Row], outputs: npt.NDArray[np.int64]
    ) -> None:
        rows = followed_rows(given, self._tables, self._block_size)
        if rows is None:
            return
        places = rows.samples
        parts["followed_firsts"][places] = places[rows.firsts]
        parts["compared"][places] = rows.compared(outputs, self.bucket.num_tokens)
        parts["followed_ends"][places] = rows.ends
        parts["followed_slots"][places] = rows.batch_slots
        parts["followed_splits"][:] = rows.splits(self._sizes).reshape(-1)

    def _fill_tokens(
        self, parts: dict[str, Ints], rows: Sequence[Row], decodes: int, batch_slots: Ints
    ) -> Ints:
        starts = np.array([row.start for row in rows], np.int32)
        tokens = token_ids_of(rows)
        last = np.arange(len(rows), dtype=np.int32)
        if decodes:
            places = starts[:decodes]
            positions = positions_of(rows[:decodes], places)
            self._place(parts, slice(0, decodes), batch_slots[:decodes], places, positions)
            parts["token_ids"][:decodes] = tokens[:decodes]
        if decodes < len(rows):
            chunks, first = rows[decodes:], self.bucket.num_decodes
            num_new = np.array([row.num_new for row in chunks], np.int32)
            ends = np.cumsum(num_new, dtype=np.int32)
            where = slice(first, first + int(ends[-1]))
            index = np.repeat(np.arange(len(chunks)), num_new)
            places = np.arange(ends[-1], dtype=np.int32)
            places += (starts[decodes:] - ends + num_new)[index]
            positions = positions_of(chunks, places)
            self._place(parts, where, batch_slots[decodes:][index], places, positions)
            parts["token_ids"][where] = tokens[decodes:]
            parts["query_starts"][first + 1 : first + 1 + len(chunks)] = first + ends
            parts["query_starts"][first + 1 + len(chunks) :] = where.stop
            last[decodes:] = first + ends - 1
        return last

    def _fill_adapters(self, slots: Ints, rows: Sequence[Row], decodes: int) -> None:
        given, first = adapters_of(rows), self.bucket.num_decodes
        slots[:decodes] = given[:decodes]
        slots[first : first + len(given) - decodes] = given[decodes:]

    def _place(
        self,
        parts: dict[str, Ints],
        where: slice,
        batch_slots: Ints,
        places: Ints,
        positions: Ints,
    ) -> None:
        size = self._block_size
        blocks = self._tables.host[batch_slots, places // size]
        parts["slots"][where] = blocks * size + places % size
        parts["positions"][where] = positions
