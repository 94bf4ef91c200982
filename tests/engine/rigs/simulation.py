"""Scheduler, cache and tiers driven at random, with injected time, delays and failures.

Pools are so small that all blocks move. Prompts share prefixes, diverge and repeat. Faults are
cancels, flushes, clients that vanish, logits that are not finite, a device without free memory, and
copies that fail or lose blocks. After every step all invariants are checked. Every request must get
the tokens that its prompt gets alone. `python -m tests.engine.rigs.simulation STEPS [SEED]` runs
longer than the suite.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import get_args

from engine.link.event_messages import Event, Failed, Finished, StepReply, Tokens
from engine.link.messages import Cancel, FlowQuota, Generate, Partition, SamplingParams
from engine.link.query_messages import Flush
from prefix_cache.names import PolicyName
from prefix_cache.namespace import Namespace
from prefix_cache.tiers.tier_pools import Tiers
from tests.doubles.engine.fake_mover import Faults
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output
from tests.doubles.engine.stateful_runner import StatefulRunner
from tests.engine.rigs.rig import CLIENT, Rig, generate

NAMESPACES = (Namespace(b"a" * 16), Namespace(b"b" * 16))
BLOCK = 2
STEPS_A_WORLD = 200  # steps before a new world is drawn
MOST_WAITING = 8
# maximum number of tokens of a conversation that goes on, small enough for the smallest pool
LONGEST_TURN = 16
TRUNKS = [[(5 * trunk + 3 * i * i) % (VOCAB_SIZE - 1) + 1 for i in range(16)] for trunk in range(3)]


@dataclass
class Tally:
    """Counts of events, so that a run without events does not pass as a proof."""

    steps: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    failed_loads: int = 0
    checkpoints: Counter[str] = field(default_factory=Counter)
    written_in_place: int = 0  # number of recurrent states that a row overwrote


class World:
    """One engine with sizes and faults drawn from a seed."""

    def __init__(
        self, seed: int, check_every: int, *, has_states: bool = False, in_place: bool = False
    ) -> None:
        random = self.random = Random(seed)
        self.rig = Rig(
            num_blocks=random.randint(14, 24),
            block_size=BLOCK,
            max_batch_tokens=random.choice([6, 12, 40]),
            max_running=random.randint(1, 5),
            deadline_s=random.choice([0.0, 0.05, 10.0]),
            overlap_scheduling=random.random() < 0.5,
            policy=get_args(PolicyName)[seed % len(get_args(PolicyName))],
            tiers=_tiers(random, has_states=has_states),
            faults=Faults(
                most_polls=random.choice([1, 3, 12]),
                failing=random.choice([0.0, 0.05, 0.3]),
                losing=random.choice([0.0, 0.1, 0.3]),
                promising=random.choice([0.0, 0.3, 1.0]),
            ),
            seed=seed,
            check_every=check_every,
            num_states=random.randint(5, 14) if has_states else 0,
            in_place=in_place,
        )
        self.asked: dict[str, Generate] = {}
        self.told: dict[str, list[Event]] = {}
        self.turns: deque[tuple[Namespace, list[int]]] = deque(maxlen=6)  # prompts and answers
        self.number = 0

    def run(self, steps: int, tally: Tally) -> None:
        """Run `steps` steps, then step until all requests and copies have ended."""
        for _ in range(steps):
            self._happen()
            self.rig.step()
            self._judge(tally)
        while not self.rig.core.is_idle:
            self.rig.step()
            self._judge(tally)
            tally.steps += 1
        assert not self.asked
        self.rig.expect_nothing_left()
        self._add_to(tally, steps)

    def _happen(self) -> None:
        drawn = self.random.random()
        if drawn < 0.35 and len(self.asked) < MOST_WAITING:
            self._ask()
        elif drawn < 0.38 and self.asked:
            self.rig.link.say(Cancel(self.random.choice(list(self.asked))))
        elif drawn < 0.385:
            namespace = self.random.choice([None, *NAMESPACES])
            flow = self.random.choice([None, "x", "y"])
            self.rig.link.say(Flush(query_id="f", namespace=namespace, flow=flow))
        elif drawn < 0.39 and self.asked:
            self.rig.runner.not_finite.add(self.random.choice(list(self.asked)))
        elif drawn < 0.392:
            self.rig.runner.raising = [MemoryError("no room")]
        elif drawn < 0.4:
            self._divide()

    def _divide(self) -> None:
        """Partition the tiers between some flows, or let all flows share them."""
        among = self.random.sample("xyz", self.random.choice([0, 2, 3, 3]))
        weights = self.random.choices([0.5, 1.0, 2.0], k=len(among))
        flows = {
            flow: FlowQuota(0.1, 0.9, weight) for flow, weight in zip(among, weights, strict=True)
        }
        self.rig.link.say(Partition(flows=flows))

    def _ask(self) -> None:
        random = self.random
        self.number += 1
        namespace, trunk = self._prefix()
        leaf = [random.randrange(1, 5) for _ in range(random.randint(0, 6))]
        request = generate(
            f"r{self.number}",
            trunk + leaf,
            flow=random.choice("xyz"),
            namespace=namespace,
            use_cache=random.random() < 0.95,
            block_size=BLOCK,
            sampling=SamplingParams(max_tokens=random.randint(1, 5), ignore_eos=True),
            loads=random.choice(["auto", "auto", "always", "never"]),
        )
        self.asked[request.request_id] = request
        self.rig.submit(request)

    def _prefix(self) -> tuple[Namespace, list[int]]:
        """Draw the beginning of a prompt: one of a few texts, or an earlier prompt with its
        answer.
        """
        if self.turns and self.random.random() < 0.4:
            return self.random.choice(self.turns)
        trunk = self.random.choice(TRUNKS)[: self.random.randint(1, 16)]
        return self.random.choice(NAMESPACES), trunk

    def _judge(self, tally: Tally) -> None:
        """Check each ended request: a fitting error, or the tokens that its prompt gets alone."""
        for message in self.rig.link.sent.pop(CLIENT, []):
            for event in message.events if isinstance(message, StepReply) else ():
                self.told.setdefault(event.request_id, []).append(event)
                if isinstance(event, Finished | Failed):
                    self._judge_end(event, tally)

    def _judge_end(self, end: Finished | Failed, tally: Tally) -> None:
        request = self.asked.pop(end.request_id)
        events = self.told.pop(end.request_id)
        tokens = [t for event in events if isinstance(event, Tokens) for t in event.token_ids]
        prompt = list(memoryview(request.token_ids).cast("i"))
        expected = expected_output(prompt, request.sampling.max_tokens)
        assert tokens == expected[: len(tokens)], (end, tokens, expected)
        if isinstance(end, Failed):
            tally.ends[end.code] += 1
            assert end.code in ("numeric_failure", "engine_failure"), end
            return
        tally.ends[end.reason] += 1
        if len(prompt) + len(tokens) <= LONGEST_TURN:
            self.turns.append((Namespace(request.namespaces[0][1]), [*prompt, *tokens]))
        assert end.reason == "cancelled" or len(tokens) == len(expected)
        for tier in ("device", "host", "disk"):
            tally.cached[tier] += getattr(end.reused.tiers, tier)
        assert end.reused.tiers.device >= 0

    def _add_to(self, tally: Tally, steps: int) -> None:
        stats = self.rig.core.stats()
        tally.steps += steps
        tally.preemptions += stats.preemptions
        tally.failed_loads += stats.failed_loads
        if isinstance(self.rig.runner, StatefulRunner):
            tally.written_in_place += self.rig.runner.num_in_place
        tally.checkpoints.update(asdict(self.rig.cache.checkpoints.counts))
        for (fate, source, target), count in self.rig.mover.ended.items():
            tally.copies[f"{source.value} to {target.value}: {fate}"] += count
        for (fate, source, target), count in self.rig.mover.ended_states.items():
            tally.copies[f"state {source.value} to {target.value}: {fate}"] += count


def _tiers(random: Random, *, has_states: bool) -> Tiers:
    tiers = Tiers(
        host_blocks=random.choice([0, 3, 8, 24]),
        disk_blocks=random.choice([0, 4, 16, 40]),
        max_disk_writes=random.choice([1, 4, 64]),
        ahead=random.choice([0, 0, 2, 4]),
    )
    if not has_states:
        return tiers
    return replace(
        tiers,
        host_states=random.choice([2, 9]) if tiers.host_blocks else 0,
        disk_states=random.choice([0, 3, 12]) if tiers.disk_blocks else 0,
        state_blocks=random.choice([1, 3]),
    )


def simulate(
    steps: int,
    seed: int,
    check_every: int = 1,
    *,
    has_states: bool = False,
    in_place: bool = False,
) -> Tally:
    """Run worlds one after the other for `steps` steps in all."""
    tally = Tally()
    world = 0
    while tally.steps < steps:
        number = seed * 1_000_003 + world
        try:
            one = World(number, check_every, has_states=has_states, in_place=in_place)
            one.run(min(STEPS_A_WORLD, steps - tally.steps), tally)
        except Exception as error:
            error.add_note(f"world {number}")
            raise
        world += 1
    return tally


def main(arguments: Sequence[str]) -> None:
    began = time.monotonic()
    tally = simulate(int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0)
    print(tally)  # noqa: T201
    print(f"{time.monotonic() - began:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
