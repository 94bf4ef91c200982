"""The recorded steps of one model, by how many tokens and rows they have room for.

    decodes   1, 2, 4, 8, 16, 24, 32, 64, 72 ... rows of one token, as many as may run
    mixed     0, 8, 16, 32, 64 ... decodes, and 64, 128, 256 tokens of one, two or more other
              rows, or as many as make 384, 512 ... in all
    sharing   4, 8, 16, 32 ... decodes, alone and with 128, 256, 512 tokens of other rows

A room is the shape that a step is recorded for. A step is replayed in the smallest room that holds
it. Which attention kernels are launched follows from the room, not from the step: so there are
rooms for one and for two rows of new tokens, whose keys are split finely, and separate rooms for
decodes that read prefixes together, which take two launches. A matrix product takes its time by the
number of all tokens, and some numbers cost more than larger ones: 448 rows more than 512, 40 to 56
as much as 64. Everything from the embedding to the drawn tokens, written to `last_tokens`, is one
launch; for rows that ask for more than a draw the sampler takes the logits.

Knows: the decoder's inputs and outputs. Does not know: how launches are recorded, or steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import torch
from torch import Tensor

from engine.batch import shared_prefix
from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room, StepInputs
from engine.graphs.recorder import Launches, Recorded, Recorder
from engine.model.decoder import UNLIKE_LAYERS, Decoder, first_layers
from engine.shared_prefixes import SharingFields
from engine.step_sizes import BESIDE, SHARING_NEW_TOKENS, new_tokens
from kernels.batch_layout import BatchLayout, SharedPrefix, no_arrivals
from kernels.unit_sizes import unit_sizes

FEW_DECODES, MANY_DECODES = 32, 64  # between them no room for decodes alone pays
FEW_PREFILLS = (1, 2)
MIN_PREFILLS, MAX_PREFILLS = 8, 32  # rows of new tokens in the other rooms
SHARING = (4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)  # decodes that read together
SHARING_BESIDE = (16, 64, 128, 256)  # the same beside other rows
TOKENS_PER_PREFILL = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """What recorded steps work on. `last_tokens` (seats + 1,) int64: the last is for padding."""

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

    def __init__(
        self, machine: Machine, recorder: Recorder, *, max_tokens: int, group_rows: int = 0
    ) -> None:
        """Record steps of up to `max_tokens` tokens, the decodes beside others not counted.

        With `group_rows` also steps whose decodes read prefixes in groups of up to so many.
        """
        self._steps: dict[tuple[int, bool], list[RecordedStep]] = defaultdict(list)
        rooms = all_rooms(machine.tables.nobody, max_tokens, group_rows)
        shortened = replace(machine, decoder=first_layers(machine.decoder, UNLIKE_LAYERS))
        for inputs in inputs_of(machine, sorted(rooms, key=_size, reverse=True)):
            recorded = recorder.record(_launches(shortened, inputs), _launches(machine, inputs))
            self._steps[_kind(inputs.room)].insert(0, RecordedStep(inputs, recorded))

    def find(self, needed: Room) -> RecordedStep | None:
        """The step with the least room for this; None where there is none."""
        steps = self._steps[_kind(needed)]
        return next((step for step in steps if step.inputs.room.holds(needed)), None)


def all_rooms(num_seats: int, max_tokens: int, group_rows: int) -> list[Room]:
    """The rooms of `RecordedSteps`."""
    rooms = list(rooms_for(num_seats, max_tokens))
    if group_rows:
        rooms += sharing_rooms(num_seats, max_tokens, group_rows)
    return rooms


def inputs_of(machine: Machine, rooms: Sequence[Room]) -> Iterator[StepInputs]:
    """The inputs of each room in turn, all in one tensor, which is padding when they come."""
    total, device = max((room.total for room in rooms), default=0), machine.pool.device
    flat = torch.zeros(total, dtype=torch.int32, device=device)
    block_size, sizes = machine.pool.shape[4], unit_sizes(machine.pool)
    for room in rooms:
        yield StepInputs(room, flat, machine.tables, block_size, sizes)


def rooms_for(num_seats: int, max_tokens: int) -> Iterator[Room]:
    """The rooms of decodes and of mixed steps."""
    most = min(num_seats, max_tokens)
    small = range(8, FEW_DECODES + 1, 8)
    for decodes in sorted({1, 2, 4, *small, *range(MANY_DECODES, most + 1, 8), most}):
        if 0 < decodes <= most:
            yield Room(decodes)
    for decodes in [count for count in sorted({*BESIDE, num_seats}) if count <= num_seats]:
        for new in [size for size in new_tokens(decodes) if size <= max_tokens]:
            for prefills in (*FEW_PREFILLS, _many_prefills(new)):
                yield Room(decodes, new, prefills)


def sharing_rooms(num_seats: int, max_tokens: int, group_rows: int) -> Iterator[Room]:
    """The rooms of decodes that read prefixes together, alone and beside other rows.

    Fewer than the others: sharing pays where decodes are many, and then padding is little.
    """
    most = min(num_seats, max_tokens)
    for decodes in sorted({*SHARING, most}):
        if 1 < decodes <= most:
            yield Room(decodes, group_rows=group_rows)
    for new, decodes in product(SHARING_NEW_TOKENS, sorted({*SHARING_BESIDE, num_seats})):
        if new <= max_tokens and 1 < decodes <= num_seats:
            for prefills in (FEW_PREFILLS[-1], _many_prefills(new)):
                yield Room(decodes, new, prefills, group_rows)


def _many_prefills(new: int) -> int:
    return min(max(new // TOKENS_PER_PREFILL, MIN_PREFILLS), MAX_PREFILLS)


def _kind(room: Room) -> tuple[int, bool]:
    return room.group_rows, room.num_new > 0


def _size(room: Room) -> tuple[int, int]:
    return room.num_tokens, room.num_rows


def _launches(machine: Machine, inputs: StepInputs) -> Launches:
    @torch.inference_mode()
    def launches() -> tuple[Tensor, ...]:
        return compute_step(machine, inputs)

    return launches


def compute_step(machine: Machine, inputs: StepInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Launch all of a step, as `RecordedStep` has its outputs; waits for nothing."""
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
        num_decodes=room.num_decodes,
        max_query_len=max(room.num_new, 1),
        max_context_len=tables.shape[1] * machine.pool.shape[4],
        shared=_shared(inputs),
        arrivals=no_arrivals(room.num_decodes, machine.pool),
        units=inputs.field("units").view(-1, 2),
    )


def _shared(inputs: StepInputs) -> SharedPrefix | None:
    if not inputs.room.group_rows:
        return None
    return shared_prefix(
        {field.name: inputs.field(field.name) for field in fields(SharingFields)},
        inputs.room.group_rows,
    )
