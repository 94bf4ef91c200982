"""Tenants that keep a real scheduler, queue and prefix cache busy, without a model."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from engine.link.event_messages import Failed, Finished, StepReply, Tokens
from engine.link.messages import Generate, Priority, SamplingParams, pack_token_ids
from engine.scheduling.fairness.costs import CACHED_TOKEN_COST, OUTPUT_TOKEN_COST
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, LoadedRunner, assemble
from engine.step import Forward, Sampled, Step
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.welcomes import welcome_of
from tests.doubles.row_owners import Running, owners_of
from tests.engine.rigs.rig import CLIENT, Clock

BLOCK_SIZE = 4
VOCAB_SIZE = 50_000
_SERVED = 1
TOKEN_S = 1e-3
FIXED_TOKENS = 8  # fixed cost of a step, in tokens


@dataclass(frozen=True)
class _Launched:
    sampled: list[Sampled]

    def collect(self) -> list[Sampled]:
        return self.sampled


class WeightlessRunner:
    """A runner that samples the same token for every row, and records each step's tokens by flow.

    A step takes `TOKEN_S` for each of its tokens, and for FIXED_TOKENS more.
    """

    def __init__(self, clock: Clock) -> None:
        self.steps: list[Counter[str]] = []
        self.running: Running = list
        self._clock = clock

    def launch(self, step: Step) -> _Launched:
        tokens: Counter[str] = Counter()
        for row, owner in zip(step.rows, owners_of(step, self.running()), strict=True):
            tokens[owner.flow] += row.num_new
        self.steps.append(tokens)
        self._clock.now += TOKEN_S * (FIXED_TOKENS + tokens.total())
        return _Launched([Sampled(_SERVED) for row in step.rows if row.num_samples])

    def launch_forward(self, step: Step) -> Forward:
        raise AssertionError("nobody has a grammar here")


@dataclass
class Shopper:
    """A tenant, the documents with which its requests begin, and its number of waiting requests."""

    name: str
    documents: list[list[int]]
    backlog: int = 12
    suffix: int = 8
    output: int = 4
    priority: Priority = "interactive"
    weight: float = 1.0
    flow: str | None = None  # None: the tenant's name is its flow
    most: int | None = None  # maximum number of requests
    sent: int = 0
    service: float = 0.0  # cost of the tokens served so far, as the scheduler's fairness counts it
    queued_steps: list[int] = field(default_factory=list)


class Market:
    """The engine, its tenants, and the results of their requests."""

    def __init__(
        self,
        shoppers: list[Shopper],
        *,
        num_blocks: int,
        queue: QueueLimits | None = None,
        max_batch_tokens: int = 128,
        max_running: int = 8,
        max_step_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self.shoppers = shoppers
        self.link = MemoryLink()
        self.clock = Clock(0.0)
        self.steps = 0
        self._random = random.Random(seed)
        self._by_request: dict[str, tuple[Shopper, int, int]] = {}
        welcome = welcome_of(
            VOCAB_SIZE, 100_000, (0,), block_size=BLOCK_SIZE, num_blocks=num_blocks
        )
        self.runner = WeightlessRunner(self.clock)
        self.core = assemble(
            LoadedRunner(self.runner, welcome, num_blocks, MemoryError),
            self.link,
            EngineLimits(
                StepLimits(max_batch_tokens, max_running, max_step_s),
                queue or QueueLimits(quantum=64),
                10.0,
                graph_tokens=0,
            ),
            clock=self.clock,
        )
        self.runner.running = lambda: self.core.components.scheduler.running

    @property
    def hit_rate(self) -> float:
        """The share of looked-up prompt tokens that were cached."""
        window = self.core.components.counters.windows(self.clock.now)["all"]
        return window.hit_tokens / window.queried_tokens

    def run(self, steps: int) -> None:
        """Run steps, and fill up every tenant's backlog before each step."""
        for _ in range(steps):
            waiting: dict[str, int] = {}
            for sequence in self.core.components.scheduler.queue:
                owner = self._by_request[sequence.request_id][0].name
                waiting[owner] = waiting.get(owner, 0) + 1
            for shopper in self.shoppers:
                for _ in range(shopper.backlog - waiting.get(shopper.name, 0)):
                    if shopper.most is None or shopper.sent < shopper.most:
                        self._send(shopper)
            self.core.step()
            self._hear()
            self.steps += 1
            self.clock.now += 1.0

    def run_out(self) -> None:
        """Run steps until all tenants' requests have ended."""
        self.run(1)
        while self._by_request:
            self.run(1)

    def _send(self, shopper: Shopper) -> None:
        tail = [self._random.randrange(2, VOCAB_SIZE) for _ in range(shopper.suffix)]
        prompt = [*self._random.choice(shopper.documents), *tail]
        flow = shopper.flow or shopper.name
        path = NamespacePath.single(Namespace(shopper.name.encode().ljust(16, b".")[:16]))
        name = f"{shopper.name}/{shopper.sent}"
        shopper.sent += 1
        self._by_request[name] = (shopper, self.steps, len(prompt))
        self.link.say(
            Generate(
                request_id=name,
                token_ids=pack_token_ids(prompt),
                namespaces=path.spans,
                block_keys=block_keys(path, np.array(prompt, np.int32), BLOCK_SIZE),
                flow=flow,
                weight=shopper.weight,
                priority=shopper.priority,
                sampling=SamplingParams(max_tokens=shopper.output, ignore_eos=True),
            ),
            CLIENT,
        )

    def _hear(self) -> None:
        messages = self.link.sent.pop(CLIENT, [])
        for event in (e for m in messages if isinstance(m, StepReply) for e in m.events):
            shopper, sent_at, length = self._by_request[event.request_id]
            assert not isinstance(event, Failed), event
            if isinstance(event, Tokens):
                shopper.service += OUTPUT_TOKEN_COST * len(event.token_ids)
                if event.reused is not None:
                    cached = event.reused.tokens
                    shopper.service += length - cached + CACHED_TOKEN_COST * cached
                    shopper.queued_steps.append(self.steps - sent_at)
            elif isinstance(event, Finished):
                shopper.service -= 1  # the last token is sampled but never computed
                del self._by_request[event.request_id]


def documents(count: int, length: int, seed: int) -> list[list[int]]:
    """Make documents of `length` tokens; no two begin with the same token."""
    drawn = random.Random(seed)
    return [[drawn.randrange(2, VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


def jain(services: list[float]) -> float:
    """Return Jain's index of fairness: 1 if all services are equal, 1/n if one of n has
    everything.
    """
    return sum(services) ** 2 / (len(services) * sum(service**2 for service in services))
