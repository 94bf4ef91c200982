"""The engine's own core with a modelled H200, and clients on the same simulated clock.

Queue, scheduler, cache and core are the engine's; `device.py` has the time of each step. So the
cost of a policy can be predicted before it is measured, within the model's limits: the gateway and
the clients take constant times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
from msgspec import structs

from engine.link.engine_end.socket_link import Incoming
from engine.link.event_messages import Event, Failed, Finished, StepReply, Tokens
from engine.link.messages import (
    FromEngine,
    Generate,
    Grammar,
    Priority,
    SamplingParams,
    pack_token_ids,
)
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import (
    CacheParts,
    EngineLimits,
    LoadedRunner,
    assemble,
)
from engine.tier_interfaces import LowerTiers
from prefix_cache.cache import DEVICE_ONLY
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from tests.doubles.engine.welcomes import welcome_of
from tests.doubles.modelled.clock import Time
from tests.doubles.modelled.device import ModelledDevice, StepModel
from tests.doubles.modelled.mover import DISK_BLOCKS_PER_S, ModelledMover

VOCAB = 128_000
BLOCK_SIZE = 16
POOL_TOKENS = 800_000
CLIENT = b"modelled"


class ModelledLink:
    """A link to clients on the same clock."""

    dropped_frames = 0

    def __init__(self, time: Time) -> None:
        self._time = time
        self._incoming: list[Incoming] = []
        self.hears: dict[str, Callable[[Event], None]] = {}

    def say(self, message: Generate, hears: Callable[[Event], None]) -> None:
        """Send the engine a message."""
        self.hears[message.request_id] = hears
        self._incoming.append(Incoming(CLIENT, message))

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """Return the messages that have arrived, or that arrive within `timeout_s`."""
        self._time.move(self._time.now)
        give_up = self._time.now + timeout_s
        while not self._incoming and self._time.now < give_up:
            self._time.move(min(give_up, self._time.next_due()))
        incoming, self._incoming = self._incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Deliver events to the clients."""
        del client
        if isinstance(message, StepReply):
            for event in message.events:
                self.hears[event.request_id](event)
        return True


def request(
    request_id: str,
    flow: str,
    prompt: npt.NDArray[np.int32],
    max_tokens: int,
    grammar: Grammar | None = None,
) -> Generate:
    """Return the request that a gateway would send for a flow, in the flow's own namespace."""
    path = NamespacePath.single(Namespace(flow.encode().ljust(16, b".")[:16]))
    return Generate(
        request_id=request_id,
        token_ids=pack_token_ids(prompt),
        namespaces=path.spans,
        block_keys=block_keys(path, prompt, BLOCK_SIZE),
        flow=flow,
        weight=1.0,
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, grammar=grammar),
    )


@dataclass
class Stream:
    """A client that sends a request, reads the answer to its end, pauses, and begins again."""

    time: Time
    link: ModelledLink
    flow: str
    prompt_tokens: int
    max_tokens: int
    pause_s: float
    seed: int
    shared: tuple[int, ...] = ()  # tokens with which every prompt begins
    on_the_way_s: float = 2e-3  # seconds from the client to the engine and back
    target_itl_s: float = 0.0
    priority: Priority = "interactive"
    firsts: list[float] = field(default_factory=list)  # seconds to first token, of each answer
    gaps: list[float] = field(default_factory=list)  # seconds between tokens of an answer
    asked_at: list[float] = field(default_factory=list)
    finished: int = 0
    is_asking: bool = True

    def __post_init__(self) -> None:
        self._heard_at = 0.0
        self._dice = np.random.default_rng(self.seed)
        self._number = count()

    def start(self) -> None:
        """Send the first request after a random pause."""
        self._later()

    def _later(self) -> None:
        pause = self.pause_s * (0.5 + float(self._dice.random())) + self.on_the_way_s
        self.time.at(self.time.now + pause, self._ask)

    def _ask(self) -> None:
        if not self.is_asking:
            return
        own = self._dice.integers(10, VOCAB, self.prompt_tokens - len(self.shared))
        prompt = np.concatenate([np.array(self.shared, np.int64), own]).astype(np.int32)
        self.asked_at.append(self.time.now)
        request_id = f"{self.flow}/{self.seed}/{next(self._number)}"
        asked = request(request_id, self.flow, prompt, self.max_tokens)
        asked = structs.replace(asked, target_itl_s=self.target_itl_s, priority=self.priority)
        self.link.say(asked, self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Tokens):
            if event.reused is not None:
                self.firsts.append(self.time.now - self.asked_at[-1] + self.on_the_way_s)
            else:
                self.gaps.append(self.time.now - self._heard_at)
            self._heard_at = self.time.now
        elif isinstance(event, Finished):
            self.finished += 1
            self._later()
        elif isinstance(event, Failed):
            raise RuntimeError(f"a request of {self.flow} failed: {event.message}")


class Replay:
    """The engine, its device and its clients."""

    def __init__(
        self,
        step: StepLimits,
        *,
        model: StepModel | None = None,
        overlap_scheduling: bool = True,
        noise: float = 0.0,
        pool_tokens: int = POOL_TOKENS,
        tiers: Tiers = DEVICE_ONLY,
        disk_blocks_per_s: float = DISK_BLOCKS_PER_S,
        num_states: int = 0,
        drafts: bool = False,
    ) -> None:
        """Create the engine. `num_states` is its number of state slots; 0: no recurrent layers."""
        self.time = Time()
        self.link = ModelledLink(self.time)
        self.device = ModelledDevice(self.time, model or StepModel(), noise)
        blocks = pool_tokens // BLOCK_SIZE
        welcome = welcome_of(
            VOCAB,
            100_000,
            (0,),
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            device="cuda",
            dtype="bfloat16",
        )
        self.core = assemble(
            LoadedRunner(self.device, welcome, blocks, MemoryError, num_states=num_states),
            self.link,
            EngineLimits(step, QueueLimits(), 10.0, overlap_scheduling, drafts=drafts),
            CacheParts(lower=LowerTiers(tiers, ModelledMover(self.time, disk_blocks_per_s))),
            clock=self.time,
        )
        self.device.running = lambda: self.core.components.scheduler.running
        self._seeds = count(1)

    def stream(self, flow: str, prompt: int, output: int, pause_s: float = 0.0) -> Stream:
        """Add a client. Call its `start` to send its first request."""
        return Stream(self.time, self.link, flow, prompt, output, pause_s, next(self._seeds))

    def run(self, until: Callable[[], bool]) -> None:
        """Run steps until `until` returns True."""
        while not until():
            self.core.step()

    def run_for(self, seconds: float) -> None:
        """Step until the clock has advanced by `seconds`."""
        over = self.time.now + seconds
        self.run(lambda: self.time.now >= over)
