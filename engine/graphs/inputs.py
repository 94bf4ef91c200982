"""What a recorded step reads: one flat int32 tensor that every step fills anew, in one copy.

A recorded step has room for `num_tokens` and `num_rows`; what a step does not fill is padding:
tokens that write to a scratch slot, rows without tokens, items without keys.

Knows: how rows become numbers, and where these lie. Does not know: graphs, or the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import count_decodes, seat_of
from engine.graphs.block_tables import BlockTables
from engine.sampler.plan import Draw
from engine.staging import HostArray
from engine.step import Row
from kernels.decode_items import cut, most_items

Ints = npt.NDArray[np.int32]

ALIGNMENT = 4  # numbers: every field starts at a multiple of 16 bytes
NO_KEYS = 2**31 - 1  # an item that starts here has none


@dataclass(frozen=True, slots=True)
class Room:
    """What one recorded step can hold. Without `num_prefills` every row has one token."""

    num_tokens: int
    num_rows: int
    num_prefills: int

    def sizes(self) -> dict[str, int]:
        """How many numbers each field has."""
        tokens, rows = self.num_tokens, self.num_rows
        per_token = ("token_ids", "pending_seats", "positions", "slots")
        per_row = ("context_lens", "table_seats", "outputs", "output_seats", "temperature")
        items = most_items(rows)
        return {
            **dict.fromkeys(per_token, tokens),
            **dict.fromkeys(per_row, rows),
            "query_starts": rows + 1,
            "row_items": rows + 1,
            "item_rows": items,
            "item_starts": items,
            "item_keys": 1,
            "bounds": 2,
            "keys": 2 * rows,
        }

    def offsets(self) -> dict[str, slice]:
        """Where each field lies in the flat tensor."""
        places, end = {}, 0
        for name, size in self.sizes().items():
            places[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        return places

    @property
    def total(self) -> int:
        """Numbers in the flat tensor."""
        return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in self.sizes().values())


class StepInputs:
    """Fills the inputs of recorded steps of one room. `flat` is shared by all rooms."""

    def __init__(self, room: Room, flat: Tensor, tables: BlockTables, block_size: int) -> None:
        self.room = room
        self._places = room.offsets()
        self._flat = flat[: room.total]
        self._tables = tables
        self._block_size = block_size
        self._padding = self._padded()
        self._flat.copy_(torch.from_numpy(self._padding))

    def field(self, name: str) -> Tensor:
        """The part of the flat tensor that a recorded step reads."""
        return self._flat[self._places[name]]

    def fill(self, rows: Sequence[Row], draw: Draw[HostArray] | None) -> None:
        """Send a step's numbers; the tables have been updated. Waits for nothing."""
        staging = torch.empty(
            self.room.total, dtype=torch.int32, pin_memory=self._flat.device.type == "cuda"
        )
        numbers = staging.numpy()
        np.copyto(numbers, self._padding)
        parts = {name: numbers[place] for name, place in self._places.items()}
        _fill_rows(parts, rows, self._tables, self._block_size)
        if draw is not None:
            parts["keys"][: draw.keys.size] = draw.keys.reshape(-1)
            parts["temperature"].view(np.float32)[: len(draw.temperature)] = draw.temperature
        self._flat.copy_(staging, non_blocking=True)

    def _padded(self) -> Ints:
        numbers = np.zeros(self.room.total, np.int32)
        nobody = self._tables.nobody
        scratch = int(self._tables.host[nobody, 0]) * self._block_size
        fillers = {
            "pending_seats": nobody,
            "table_seats": nobody,
            "output_seats": nobody,
            "slots": scratch,
            "item_starts": NO_KEYS,
        }
        for name, value in fillers.items():
            numbers[self._places[name]] = value
        return numbers


def _fill_rows(
    parts: dict[str, Ints], rows: Sequence[Row], tables: BlockTables, block_size: int
) -> None:
    seats = np.array([seat_of(row) for row in rows], np.int32)
    starts = np.array([row.start for row in rows], np.int32)
    ends = np.array([row.end for row in rows], np.int32)
    samples = np.array([row.samples for row in rows], np.bool_)
    pending = np.array([row.is_pending for row in rows], np.bool_)
    last = _fill_tokens(parts, rows, seats, ends - starts, tables.host, block_size)
    parts["pending_seats"][last[pending]] = seats[pending]
    parts["context_lens"][: len(rows)] = ends
    parts["table_seats"][: len(rows)] = seats
    count = int(samples.sum())
    parts["outputs"][:count] = last[samples]
    parts["output_seats"][:count] = seats[samples]
    num_decodes = count_decodes(rows)
    parts["bounds"][:] = num_decodes, len(rows)
    _fill_items(parts, ends[:num_decodes])


def _fill_tokens(
    parts: dict[str, Ints],
    rows: Sequence[Row],
    seats: Ints,
    num_new: Ints,
    tables: Ints,
    block_size: int,
) -> Ints:
    """Everything by token; returns where each row's last token lies."""
    ends = np.cumsum(num_new, dtype=np.int32)
    total = int(ends[-1])
    starts = np.array([row.start for row in rows], np.int32)
    positions = starts
    if total > len(rows):
        index = np.repeat(np.arange(len(rows)), num_new)
        positions = np.arange(total, dtype=np.int32) + (starts - ends + num_new)[index]
        seats = seats[index]
    blocks = tables[seats, positions // block_size]
    parts["slots"][:total] = blocks * block_size + positions % block_size
    parts["positions"][:total] = positions
    parts["token_ids"][:total] = _token_ids(rows)
    parts["query_starts"][1 : len(rows) + 1] = ends
    parts["query_starts"][len(rows) + 1 :] = total
    return ends - 1


def _token_ids(rows: Sequence[Row]) -> Ints:
    return np.concatenate([row.sequence.tokens[row.start : row.end] for row in rows])


def _fill_items(parts: dict[str, Ints], contexts: Ints) -> None:
    items = cut(contexts)
    count = len(items.rows)
    parts["item_rows"][:count] = items.rows
    parts["item_starts"][:count] = items.starts
    parts["row_items"][: len(items.row_items)] = items.row_items
    parts["row_items"][len(items.row_items) :] = count
    parts["item_keys"][:] = items.keys
