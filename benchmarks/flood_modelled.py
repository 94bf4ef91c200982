"""A flood on a GPU that is not there: the engine's own core before a device that only takes time.

    python -m benchmarks.flood_modelled --streams 64 --flood-prompt 8000 --victim-prompt 2000

Queue, scheduler, cache and core are the engine's. A step takes what a model of an 8B on one H200
says (`StepModel`), on a clock that nobody waits for; whoever asks does so on the same clock. So a
policy's price is foretold before it is measured, within what the model leaves out: the gateway
and the askers take constant times here.

Knows: seconds of steps, who asks when. Does not know: what is decided (`engine.scheduler`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from benchmarks.gateway import percentile
from engine.assembly import Computer, Limits, ModelFacts, assemble
from engine.codec import pack_token_ids
from engine.link import Incoming
from engine.messages import Event, Finished, FromEngine, Generate, SamplingParams, StepReply, Tokens
from engine.plan import StepLimits
from engine.queue import QueueLimits
from engine.step import Sampled, Step
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

VOCAB = 128_000
BLOCK_SIZE = 16
POOL_TOKENS = 800_000
WARM_UP_S = 2.0  # as in `benchmarks.flood`
CLIENT = b"modelled"


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step of an 8B on one H200: read off `benchmarks.step` and `.attention`."""

    of_itself: float = 4.0e-3
    token: float = 17.9e-6  # of a prompt: its products
    pair: float = 1.2e-9  # of a prompt's token and a key before it
    decode_key: float = 31e-9
    replayed: int = 1024  # tokens of prompts in a step that the host launches at once
    launch: float = 1.0e-3  # of the host, and of one that is not replayed
    eager_launch: float = 6.0e-3

    def seconds(self, step: Step) -> float:
        """What the device is at it."""
        chunks = [row for row in step.rows if row.num_new > 1]
        pairs = sum(row.num_new * (row.start + row.num_new / 2) for row in chunks)
        keys = sum(row.end for row in step.rows if row.num_new == 1)
        new = sum(row.num_new for row in chunks)
        return self.of_itself + self.token * new + self.pair * pairs + self.decode_key * keys

    def launch_seconds(self, step: Step) -> float:
        """What the host is at it."""
        is_replayed = sum(row.num_new for row in step.rows if row.num_new > 1) <= self.replayed
        return self.launch if is_replayed else self.eager_launch


class Time:
    """A clock that moves when somebody says so, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Let something happen."""
        heappush(self._due, (when, next(self._number), happens))

    def move(self, until: float) -> None:
        """Go on to `until`; what was to happen before has happened then."""
        while self._due and self._due[0][0] <= until:
            when, _, happens = heappop(self._due)
            self.now = max(self.now, when)
            happens()
        self.now = max(self.now, until)

    def next_due(self) -> float:
        """When something happens next."""
        return self._due[0][0] if self._due else float("inf")


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A step that the device is at until `over`."""

    time: Time
    over: float
    sampled: list[Sampled]

    def collect(self) -> list[Sampled]:
        """Wait for it."""
        self.time.move(self.over)
        return self.sampled


@dataclass
class ModelledDevice:
    """A runner that computes nothing, one step after the other, for as long as the model says."""

    time: Time
    model: StepModel
    noise: float = 0.0  # a step takes up to so much more, as a share
    idle: float = 0.0  # seconds in which it stood still between two steps
    steps: list[tuple[float, Step]] = field(default_factory=list)  # when it was begun
    _over: float = 0.0
    _dice: random.Random = field(default_factory=lambda: random.Random(5))

    def launch(self, step: Step) -> OnItsWay:
        """Begin behind the step before."""
        begun = max(self.time.now + self.model.launch, self._over)
        if self._over:
            self.idle += begun - self._over
        self.time.move(self.time.now + self.model.launch_seconds(step))
        seconds = self.model.seconds(step) * (1 + self.noise * self._dice.random())
        self._over = max(begun + seconds, self.time.now)
        self.steps.append((begun, step))
        return OnItsWay(self.time, self._over, [Sampled(1) for row in step.rows if row.samples])


class ModelledLink:
    """A link whose other end are askers on the same clock."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._incoming: list[Incoming] = []
        self.hears: dict[str, Callable[[Event], None]] = {}

    def say(self, message: Generate, hears: Callable[[Event], None]) -> None:
        """Ask the engine."""
        self.hears[message.request_id] = hears
        self._incoming.append(Incoming(CLIENT, message))

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """What has come by now, or in so many seconds."""
        self._time.move(self._time.now)
        give_up = self._time.now + timeout_s
        while not self._incoming and self._time.now < give_up:
            self._time.move(min(give_up, self._time.next_due()))
        incoming, self._incoming = self._incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Let askers hear."""
        del client
        if isinstance(message, StepReply):
            for event in message.events:
                self.hears[event.request_id](event)
        return True


@dataclass
class Stream:
    """Asks, reads to the end, pauses, and asks again."""

    time: Time
    link: ModelledLink
    flow: str
    prompt_tokens: int
    max_tokens: int
    pause_s: float
    seed: int
    shared: tuple[int, ...] = ()  # what each prompt begins with
    on_the_way_s: float = 2e-3  # from the asker to the engine and back
    firsts: list[float] = field(default_factory=list)  # seconds to the first tokens
    asked_at: list[float] = field(default_factory=list)
    finished: int = 0
    is_asking: bool = True

    def __post_init__(self) -> None:
        self._dice = np.random.default_rng(self.seed)
        self._number = count()

    def start(self) -> None:
        """Ask for the first time after a part of the pause."""
        self._later()

    def _later(self) -> None:
        pause = self.pause_s * (0.5 + float(self._dice.random())) + self.on_the_way_s
        self.time.at(self.time.now + pause, self._ask)

    def _ask(self) -> None:
        if not self.is_asking:
            return
        own = self._dice.integers(10, VOCAB, self.prompt_tokens - len(self.shared))
        prompt = np.concatenate([np.array(self.shared, np.int64), own]).astype(np.int32)
        path = NamespacePath.single(Namespace(self.flow.encode().ljust(16, b".")[:16]))
        self.asked_at.append(self.time.now)
        self.link.say(
            Generate(
                request_id=f"{self.flow}/{self.seed}/{next(self._number)}",
                token_ids=pack_token_ids(prompt.tolist()),
                namespaces=path.spans,
                block_keys=block_keys(path, prompt, BLOCK_SIZE),
                flow=self.flow,
                weight=1.0,
                sampling=SamplingParams(max_tokens=self.max_tokens, ignore_eos=True),
            ),
            self._hear,
        )

    def _hear(self, event: Event) -> None:
        if isinstance(event, Tokens) and event.cached_tokens is not None:
            self.firsts.append(self.time.now - self.asked_at[-1] + self.on_the_way_s)
        elif isinstance(event, Finished):
            self.finished += 1
            self._later()


class Replay:
    """The engine, its device, its askers."""

    def __init__(
        self,
        step: StepLimits,
        *,
        model: StepModel | None = None,
        steps_ahead: int = 1,
        noise: float = 0.0,
        pool_tokens: int = POOL_TOKENS,
    ) -> None:
        self.time = Time()
        self.link = ModelledLink(self.time)
        self.device = ModelledDevice(self.time, model or StepModel(), noise)
        facts = ModelFacts(b"f" * 32, VOCAB, 100_000, (0,), "cuda", "bfloat16")
        blocks = pool_tokens // BLOCK_SIZE
        self.core = assemble(
            Computer(self.device, facts, blocks, BLOCK_SIZE, MemoryError),
            self.link,
            Limits(step, QueueLimits(), 10.0, steps_ahead),
            clock=self.time,
        )
        self._seeds = count(1)

    def stream(self, flow: str, prompt: int, output: int, pause_s: float = 0.0) -> Stream:
        """One who asks from now on."""
        return Stream(self.time, self.link, flow, prompt, output, pause_s, next(self._seeds))

    def run(self, until: Callable[[], bool]) -> None:
        """Step until it is so."""
        while not until():
            self.core.step()

    def run_for(self, seconds: float) -> None:
        """Step for so long."""
        over = self.time.now + seconds
        self.run(lambda: self.time.now >= over)


@dataclass(frozen=True)
class Outcome:
    """Seconds to the victim's first tokens, and what was computed a second meanwhile."""

    alone: list[float]
    beside: list[float]
    all_tokens: float
    flood_tokens: float
    idle: float  # share of the time in which the device stood still

    def times(self, share: float) -> float:
        """How many times as long as alone, at a percentile."""
        return percentile(self.beside, share) / percentile(self.alone, share)


def flooded(
    replay: Replay, options: argparse.Namespace, prompt: int, asks: int | None = None
) -> Outcome:
    """The victim alone, then beside the flood."""
    asks = asks or options.asks
    alone = replay.stream("victim", prompt, options.victim_output, options.pause)
    alone.start()
    replay.run(lambda: alone.finished >= asks // 3)
    alone.is_asking = False
    crowd = [
        replay.stream(f"flood{n % options.floods}", options.flood_prompt, options.flood_output)
        for n in range(options.streams)
    ]
    for one in crowd:
        one.start()
    replay.run_for(WARM_UP_S)
    victim = replay.stream("victim", prompt, options.victim_output, options.pause)
    victim.start()
    since, done = replay.time.now, len(replay.device.steps)
    idle = replay.device.idle
    replay.run(lambda: len(victim.firsts) >= asks)
    seconds = replay.time.now - since
    rows = [row for _, step in replay.device.steps[done:] for row in step.rows]
    tokens = sum(row.num_new for row in rows if row.sequence.flow != "victim")
    return Outcome(
        alone.firsts,
        victim.firsts,
        sum(row.num_new for row in rows) / seconds,
        tokens / seconds,
        (replay.device.idle - idle) / seconds,
    )


def equals(replay: Replay, flows: int, streams: int, requests: int, *, pause_s: float) -> float:
    """Requests a second of equal tenants, each with a prefix of its own."""
    dice = random.Random(3)
    all_of_them = []
    for flow in range(flows):
        prefix = tuple(dice.choices(range(10, VOCAB), k=4096))
        for _ in range(streams):
            one = replay.stream(f"tenant{flow}", 4096 + 128, 64, pause_s)
            one.shared = prefix
            one.start()
            all_of_them.append(one)
    replay.run(lambda: sum(one.finished for one in all_of_them) >= requests)
    return requests / replay.time.now


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--floods", type=int, default=1)
    parser.add_argument("--flood-prompt", type=int, default=8000)
    parser.add_argument("--flood-output", type=int, default=32)
    parser.add_argument("--victim-prompt", type=int, action="append")
    parser.add_argument("--victim-output", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--asks", type=int, default=60)
    parser.add_argument("--max-batch-tokens", type=int, default=8192)
    parser.add_argument("--beside-visitors", type=int, help="none: there are no visitors")
    parser.add_argument("--eager-launch-ms", type=float, default=6.0)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main() -> None:
    """Foretell each length of prompt."""
    options = parsed()
    for prompt in options.victim_prompt or [2000, 8000]:
        replay = Replay(
            StepLimits(options.max_batch_tokens, 256, beside_visitors=options.beside_visitors),
            model=StepModel(eager_launch=options.eager_launch_ms / 1e3),
            noise=options.noise,
        )
        outcome = flooded(replay, options, prompt)
        figures = {
            "victim_prompt": prompt,
            "alone_ms": round(percentile(outcome.alone, 0.5), 1),
            **{f"p{int(100 * s)}": round(outcome.times(s), 2) for s in (0.5, 0.9, 0.99)},
            "all_tokens_s": round(outcome.all_tokens),
            "flood_tokens_s": round(outcome.flood_tokens),
            "idle": round(outcome.idle, 4),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
