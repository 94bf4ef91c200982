"""What a recorded step reads: one flat int32 tensor that every step fills anew, in one copy.

The part of its room that a step does not need is padding: decodes without keys, which write to a
scratch slot, and rows without tokens.

    row    | d | d | d | - | - |   p   |  p  |  -  |      d: decodes, p: rows with more tokens,
    token  | 0   1   2   3   4 | 5 6 7 | 8 9 |            -: padding

Knows: how rows become numbers, and where these lie. Does not know: graphs, or the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import count_decodes, in_batch_order, seat_of, units_of
from engine.graphs.block_tables import BlockTables
from engine.sampler.plan import Draw
from engine.shared_prefixes import Sharing, SharingFields, most_groups, nobody_shares
from engine.staging import HostArray, host_buffer
from engine.step import Row
from kernels.unit_sizes import UnitSizes

Ints = npt.NDArray[np.int32]

ALIGNMENT = 4  # numbers: every field starts at a multiple of 16 bytes


@dataclass(frozen=True, slots=True)
class Room:
    """What one recorded step can hold: `num_decodes` rows of one token, and behind them
    `num_prefills` rows that have `num_new` tokens together."""

    num_decodes: int
    num_new: int = 0
    num_prefills: int = 0
    group_rows: int = 0  # decodes that read a prefix together, at most; 0: none do

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return self.num_decodes + self.num_new

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return self.num_decodes + self.num_prefills

    def holds(self, other: Room) -> bool:
        """Whether a step that needs `other` has room here."""
        return (
            other.group_rows == self.group_rows
            and other.num_decodes <= self.num_decodes
            and other.num_new <= self.num_new
            and other.num_prefills <= self.num_prefills
        )

    def sizes(self) -> dict[str, int]:
        """How many numbers each field has."""
        tokens, rows = self.num_tokens, self.num_rows
        per_token = ("token_ids", "pending_seats", "positions", "slots")
        per_row = ("context_lens", "table_seats", "outputs", "output_seats", "temperature")
        return {
            **dict.fromkeys(per_token, tokens),
            **dict.fromkeys(per_row, rows),
            "query_starts": rows + 1,
            "keys": 2 * rows,
            "units": 4 if self.group_rows else 2,
            **self._shared_sizes(),
        }

    def _shared_sizes(self) -> dict[str, int]:
        if not self.group_rows:
            return {}
        groups = most_groups(self.num_decodes)
        return {
            "group_starts": groups + 1,
            "key_starts": groups,
            "key_ends": groups,
            "own_starts": self.num_decodes,
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

    def __init__(
        self, room: Room, flat: Tensor, tables: BlockTables, block_size: int, sizes: UnitSizes
    ) -> None:
        self.room = room
        self._sizes = sizes
        self._places = room.offsets()
        self._flat = flat[: room.total]
        self._tables = tables
        self._block_size = block_size
        self._padding = self._padded()
        self._flat.copy_(torch.from_numpy(self._padding))

    def field(self, name: str) -> Tensor:
        """The part of the flat tensor that a recorded step reads."""
        return self._flat[self._places[name]]

    def fill(
        self,
        rows: Sequence[Row],
        draw: Draw[HostArray] | None,
        sharing: Sharing | None = None,
    ) -> None:
        """Send a step's numbers; the tables have been updated. Waits for nothing.

        `sharing` is given where the room shares. The decodes lie in its order; outputs and
        `draw` are in the order of `rows`.
        """
        staging = host_buffer(self._flat.shape, torch.int32, self._flat.device)
        numbers = staging.numpy()
        np.copyto(numbers, self._padding)
        parts = {name: numbers[place] for name, place in self._places.items()}
        self._fill_rows(parts, rows, sharing)
        for name, values in _shared_fields(sharing, self.room).items():
            parts[name][:] = values
        if draw is not None:
            parts["keys"][: draw.keys.size] = draw.keys.reshape(-1)
            parts["temperature"].view(np.float32)[: len(draw.temperature)] = draw.temperature
        self._flat.copy_(staging, non_blocking=True)

    def _padded(self) -> Ints:
        numbers = np.zeros(self.room.total, np.int32)
        nobody = self._tables.nobody
        scratch = int(self._tables.host[nobody, 0]) * self._block_size
        nobody_together = nobody_shares(self.room.group_rows) if self.room.group_rows else None
        fillers: dict[str, int | Ints] = {
            "pending_seats": nobody,
            "table_seats": nobody,
            "output_seats": nobody,
            "slots": scratch,
            "query_starts": np.minimum(
                np.arange(self.room.num_rows + 1, dtype=np.int32), np.int32(self.room.num_decodes)
            ),
            "units": units_of(self._sizes, np.zeros(0, np.int32), nobody_together).reshape(-1),
            **_shared_fields(nobody_together, self.room),
        }
        for name, value in fillers.items():
            numbers[self._places[name]] = value
        return numbers

    def _fill_rows(
        self, parts: dict[str, Ints], given: Sequence[Row], sharing: Sharing | None
    ) -> None:
        rows, places = in_batch_order(given, sharing)
        decodes = count_decodes(rows)
        seats = np.array([seat_of(row) for row in rows], np.int32)
        ends = np.array([row.end for row in rows], np.int32)
        samples = np.array([row.samples for row in given], np.bool_)
        sampling = places[samples]  # where the rows that sample lie, as given
        pending = np.array([row.is_pending for row in rows], np.bool_)
        place = np.arange(len(rows))
        place[decodes:] += self.room.num_decodes - decodes
        last = self._fill_tokens(parts, rows, decodes, seats)
        parts["pending_seats"][last[pending]] = seats[pending]
        parts["context_lens"][place] = ends
        if decodes:
            parts["units"][:] = units_of(self._sizes, ends[:decodes], sharing).reshape(-1)
        parts["table_seats"][place] = seats
        parts["outputs"][: len(sampling)] = last[sampling]
        parts["output_seats"][: len(sampling)] = seats[sampling]

    def _fill_tokens(
        self, parts: dict[str, Ints], rows: Sequence[Row], decodes: int, seats: Ints
    ) -> Ints:
        """Everything by token; returns where each row's last token lies."""
        starts = np.array([row.start for row in rows], np.int32)
        last = np.arange(len(rows), dtype=np.int32)
        if decodes:
            self._place(parts, slice(0, decodes), seats[:decodes], starts[:decodes])
            tokens = [row.sequence.tokens[row.start] for row in rows[:decodes]]
            parts["token_ids"][:decodes] = tokens
        if decodes < len(rows):
            chunks, first = rows[decodes:], self.room.num_decodes
            num_new = np.array([row.num_new for row in chunks], np.int32)
            ends = np.cumsum(num_new, dtype=np.int32)
            where = slice(first, first + int(ends[-1]))
            index = np.repeat(np.arange(len(chunks)), num_new)
            positions = np.arange(ends[-1], dtype=np.int32)
            positions += (starts[decodes:] - ends + num_new)[index]
            self._place(parts, where, seats[decodes:][index], positions)
            parts["token_ids"][where] = np.concatenate(
                [row.sequence.tokens[row.start : row.end] for row in chunks]
            )
            parts["query_starts"][first + 1 : first + 1 + len(chunks)] = first + ends
            parts["query_starts"][first + 1 + len(chunks) :] = where.stop
            last[decodes:] = first + ends - 1
        return last

    def _place(self, parts: dict[str, Ints], where: slice, seats: Ints, positions: Ints) -> None:
        size = self._block_size
        blocks = self._tables.host[seats, positions // size]
        parts["slots"][where] = blocks * size + positions % size
        parts["positions"][where] = positions


def _shared_fields(sharing: Sharing | None, room: Room) -> dict[str, Ints]:
    """By name, what a room that shares has beside the rest."""
    if sharing is None:
        return {}
    made = sharing.fields(room.num_decodes)
    return {field.name: getattr(made, field.name) for field in fields(SharingFields)}
