"""The recorded steps of one model, by how many tokens and rows they have room for.

    decodes   1, 2, 4, 8, 16, 24 ... rows of one token, as many as may run
    mixed     64, 128 ... tokens, in decodes and a few rows with more

A step takes the smallest room that holds it. From embedding to the tokens drawn and written
down for their seats all is one launch; rows that ask for more than a draw take the logits.

Knows: the decoder's inputs and outputs. Does not know: how launches are recorded, or steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room, StepInputs
from engine.graphs.recorder import Recorded, Recorder
from engine.model.decoder import Decoder
from kernels.batch_layout import BatchLayout, DecodeItems

FINE_STEP = 64  # tokens between the rooms of mixed steps
COARSE_STEP = 128
COARSE_FROM = 512
MOST_PREFILLS = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """What every recorded step works on. `last_tokens` (seats + 1,): the last is nobody's."""

    decoder: Decoder
    pool: Tensor
    last_tokens: Tensor
    tables: BlockTables


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One room: fill `inputs`, replay, read the outputs."""

    inputs: StepInputs
    recorded: Recorded

    @property
    def logits(self) -> Tensor:
        """(rows, V) in the model's dtype, of the rows that sample."""
        return self.recorded.outputs[0]

    @property
    def packed(self) -> Tensor:
        """(2, rows) int32: tokens, and whether their logits were finite."""
        return self.recorded.outputs[1]

    @property
    def sampled_from(self) -> Tensor:
        """(rows,) int64: the tokens that the logits follow."""
        return self.recorded.outputs[2]


class RecordedSteps:
    """All rooms, recorded at the start, the largest first."""

    def __init__(self, machine: Machine, recorder: Recorder, *, max_tokens: int) -> None:
        """Record steps of up to `max_tokens` tokens."""
        num_seats = machine.tables.nobody
        rooms = list(rooms_for(num_seats, max_tokens))
        flat = torch.zeros(
            max((room.total for room in rooms), default=0),
            dtype=torch.int32,
            device=machine.pool.device,
        )
        self._decodes: dict[int, RecordedStep] = {}
        self._mixed: dict[int, RecordedStep] = {}
        for room in sorted(rooms, key=lambda room: room.num_tokens, reverse=True):
            inputs = StepInputs(room, flat, machine.tables, machine.pool.shape[4])
            step = RecordedStep(inputs, _recorded(machine, inputs, recorder))
            (self._mixed if room.num_prefills else self._decodes)[room.num_tokens] = step
        self._decode_sizes = sorted(self._decodes)
        self._mixed_sizes = sorted(self._mixed)

    def find(self, *, num_tokens: int, num_prefills: int) -> RecordedStep | None:
        """The step with the smallest room for this; None where there is none."""
        if num_prefills > MOST_PREFILLS:
            return None
        sizes = self._mixed_sizes if num_prefills else self._decode_sizes
        at = bisect_left(sizes, num_tokens)
        if at == len(sizes):
            return None
        return (self._mixed if num_prefills else self._decodes)[sizes[at]]


def rooms_for(num_seats: int, max_tokens: int) -> Iterator[Room]:
    """The rooms of decodes and of mixed steps."""
    most_rows = min(num_seats, max_tokens)
    for rows in {1, 2, 4, *range(8, most_rows + 1, 8), most_rows}:
        if 0 < rows <= most_rows:
            yield Room(rows, rows, 0)
    fine = range(FINE_STEP, min(max_tokens, COARSE_FROM) + 1, FINE_STEP)
    coarse = range(COARSE_FROM + COARSE_STEP, max_tokens + 1, COARSE_STEP)
    for tokens in (*fine, *coarse):
        yield Room(tokens, num_seats, min(MOST_PREFILLS, num_seats))


def _recorded(machine: Machine, inputs: StepInputs, recorder: Recorder) -> Recorded:
    @torch.inference_mode()
    def launches() -> tuple[Tensor, ...]:
        return _step(machine, inputs)

    return recorder.record(launches)


def _step(machine: Machine, inputs: StepInputs) -> tuple[Tensor, Tensor, Tensor]:
    token_ids = _token_ids(machine, inputs)
    outputs = inputs.field("outputs").long()
    logits = machine.decoder.logits(token_ids, _layout(machine, inputs), machine.pool, outputs)
    tokens, finite = machine.decoder.ops.draw(
        logits,
        inputs.field("temperature").view(torch.float32),
        inputs.field("keys").view(-1, 2),
    )
    machine.last_tokens.index_copy_(0, inputs.field("output_seats").long(), tokens)
    packed = torch.stack((tokens.int(), finite.int()))
    return logits, packed, token_ids.index_select(0, outputs)


def _token_ids(machine: Machine, inputs: StepInputs) -> Tensor:
    seats = inputs.field("pending_seats")
    pending = machine.last_tokens.index_select(0, seats)
    return torch.where(seats < machine.tables.nobody, pending, inputs.field("token_ids").long())


def _layout(machine: Machine, inputs: StepInputs) -> BatchLayout:
    room = inputs.room
    tables = machine.tables.device
    return BatchLayout(
        query_starts=inputs.field("query_starts"),
        context_lens=inputs.field("context_lens"),
        block_tables=tables.index_select(0, inputs.field("table_seats")),
        positions=inputs.field("positions").long(),
        slots=inputs.field("slots").long(),
        bounds=inputs.field("bounds"),
        items=DecodeItems(
            inputs.field("item_rows"),
            inputs.field("item_starts"),
            inputs.field("row_items"),
            inputs.field("item_keys"),
            combines=True,
        ),
        num_decodes=room.num_rows,
        num_prefills=room.num_prefills,
        max_context_len=tables.shape[1],
    )
