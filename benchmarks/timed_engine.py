"""The engine's core in a process of its own, before a device that only takes time.

A step with new tokens takes a constant time and computes nothing. The host's part of a replayed
step, block tables and inputs, is made as for a GPU, on the CPU; copies between tiers are over at
once. Of each request it is told when it came, was launched, was computed, and was answered.

Knows: the engine's core and link. Does not know: who asks (`hot_prompts`).
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from engine.assembly import Computer, Keeping, Limits, ModelFacts, assemble
from engine.batch import count_decodes
from engine.codec import Codec
from engine.draft import StepLimits
from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room, StepInputs
from engine.graphs.steps import rooms_for
from engine.link import Incoming, SocketLink
from engine.lower_tiers import LowerTiers
from engine.messages import FromEngine, Generate, StepReply
from engine.pool_size import blocks_ahead
from engine.process import StopSignal, serve
from engine.pulse import Echo
from engine.queue import QueueLimits
from engine.sampler.planner import Planner
from engine.shared_prefixes import SharedPrefixes, SharingRule
from engine.step import Sampled, Step
from kernels.tuning import decode_tuning, shared_tuning
from kernels.unit_sizes import UnitSizes
from prefix_cache.shelf import Tiers
from storage.move import Move, Plan
from storage.settled import Settled

VOCABULARY, CONTEXT = 128_256, 131_072
BLOCK_SIZE, NUM_BLOCKS, SEATS = 16, 16_384, 256
HOST_BLOCKS = 4_096
SIZES = UnitSizes(
    decode_tuning(128, torch.bfloat16), shared_tuning(128, torch.bfloat16), kv_heads=8
)
TOKEN_BYTES = 4096  # of keys and values in a layer of an 8B
CPU = torch.device("cpu")


@dataclass(slots=True)
class Moments:
    """When the engine did what with the newest request; monotonic seconds."""

    received: float = 0.0
    launched: float = 0.0
    collected: float = 0.0
    told: float | None = None


class TimedLink(SocketLink):
    """A link that notes when a request comes, and tells how it went when its first token left."""

    def __init__(self, path: str, moments: Moments, tell: Connection) -> None:
        super().__init__(path, codec=Codec())
        self._moments = moments
        self._tell = tell

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """As the link does."""
        incoming = super().receive(timeout_s=timeout_s)
        if any(isinstance(one.message, Generate) for one in incoming):
            self._moments.received, self._moments.told = time.monotonic(), None
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """As the link does."""
        now = self._moments
        if not isinstance(message, StepReply) or now.told is not None:
            return super().send(client, message)
        now.told = time.monotonic()
        is_sent = super().send(client, message)
        self._tell.send((now.received, now.launched, now.collected, now.told))
        return is_sent


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A step that is over at some time."""

    moments: Moments
    over: float
    num_rows: int

    def collect(self) -> list[Sampled]:
        """Wait for it."""
        time.sleep(max(0.0, self.over - time.monotonic()))
        if self.moments.told is None:
            self.moments.collected = time.monotonic()
        return [Sampled(77)] * self.num_rows


class TimedDevice:
    """A runner that does the host's part of a replayed step; the device's part is a wait."""

    def __init__(self, moments: Moments, step_s: float) -> None:
        self._moments = moments
        self._step_s = step_s
        self._over = 0.0
        self._planner = Planner(VOCABULARY, (1,), lambda: 1)
        self._prefixes = SharedPrefixes(SharingRule(BLOCK_SIZE, TOKEN_BYTES, 1024, 16))
        self._tables = BlockTables(
            num_seats=SEATS,
            num_blocks=CONTEXT // BLOCK_SIZE,
            scratch_block=NUM_BLOCKS,
            device=CPU,
        )
        rooms = sorted(rooms_for(SEATS, 1024), key=lambda room: (room.num_tokens, room.num_rows))
        flat = torch.zeros(max(room.total for room in rooms), dtype=torch.int32)
        self._inputs = [StepInputs(room, flat, self._tables, BLOCK_SIZE, SIZES) for room in rooms]

    def launch(self, step: Step) -> OnItsWay:
        """Begin after the step before it."""
        decodes = count_decodes(step.rows)
        needed = Room(decodes, step.num_tokens - decodes, len(step.rows) - decodes)
        self._prefixes.find(step.rows[:decodes])
        self._tables.update(step.rows)
        sampling = [row.sequence for row in step.rows if row.samples]
        draw = self._planner.plain(sampling)
        for inputs in self._inputs:
            if inputs.room.holds(needed) and bool(inputs.room.num_new) == bool(needed.num_new):
                inputs.fill(step.rows, draw)
                break
        now = time.monotonic()
        if needed.num_new:
            self._moments.launched = now
        self._over = max(now, self._over) + self._step_s
        return OnItsWay(self._moments, self._over, len(sampling))


class CopiesNothing:
    """A `TierMover` whose copies have ended when it is asked."""

    def __init__(self) -> None:
        self._moves: list[Move] = []

    @property
    def pending(self) -> int:
        """Moves that have not been reported."""
        return len(self._moves)

    def start(self, plan: Plan) -> None:
        """Note the moves."""
        self._moves += plan.moves

    def poll(self) -> Settled:
        """All of them have ended."""
        done, self._moves = tuple(self._moves), []
        return Settled(done=done)

    def close(self) -> None:
        """Nothing to close."""


def host_tier() -> LowerTiers:
    """A host tier of `HOST_BLOCKS` blocks."""
    ahead = blocks_ahead(NUM_BLOCKS, BLOCK_SIZE)
    return LowerTiers(Tiers(host_blocks=HOST_BLOCKS, ahead=ahead), CopiesNothing())


def engine_process(socket: str, step_s: float, lower: LowerTiers | None, tell: Connection) -> None:
    """Serve `socket` with steps of `step_s` seconds; `tell` is sent four `Moments` a request."""
    torch.set_num_threads(1)
    moments, stop = Moments(), StopSignal()
    stop.listen()
    facts = ModelFacts(b"f" * 32, VOCABULARY, CONTEXT, (1,), "cuda", "bfloat16")
    with closing(TimedLink(socket, moments, tell)) as link, closing(Echo(socket)):
        core = assemble(
            Computer(TimedDevice(moments, step_s), facts, NUM_BLOCKS, BLOCK_SIZE, MemoryError),
            link,
            Limits(StepLimits(8192, SEATS), QueueLimits(), 10.0, 1),
            Keeping(lower=lower or LowerTiers()),
        )
        serve(core, stop, grace_s=1.0)
