"""Room that a flow lends to other flows' answers comes back when the flow's requests need it.

Two flows flood a small engine with long answers. A third flow sends several requests at once, which
fit into its share. It gets its first tokens as if there were no floods, its sequences are never
preempted, and every request of the floods ends with the right tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.link.event_messages import Finished, StepReply, Tokens
from engine.link.messages import FlowQuota, Generate, Partition
from engine.sequences.sequence import Sequence
from prefix_cache.tiers.tier_pools import Tiers
from tests.doubles.constraints import HeldMasks, steps_of
from tests.doubles.engine.fake_runner import VOCAB_SIZE, expected_output
from tests.engine.in_flight.test_masked_step import answer, bound
from tests.engine.rigs.rig import CLIENT, NAMESPACE, OTHER, Rig, generate
from tests.engine.test_drafts import drafting
from tests.examples import in_the_zoo

BUDGET = 64
FLOODS, QUIET = ("flood0", "flood1"), "quiet"
PROMPT, ANSWER = 10, 6  # numbers of tokens of each quiet request, which fill four blocks
BACKLOG = 6  # number of waiting requests of each flood


@dataclass
class AnswersHeard:
    """The engine's answers, by request."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)  # number of the step with the first token
    ended: set[str] = field(default_factory=set)


class FloodedEngine:
    """An engine whose blocks, batch slots or state slots two floods occupy."""

    def __init__(self, random: Random, **settings: object) -> None:
        self.random = random
        self.rig = Rig(max_batch_tokens=BUDGET, check_every=20, **settings)  # type: ignore[arg-type]
        self.heard = AnswersHeard()
        self.asked: dict[str, tuple[Generate, int]] = {}
        self.preempted = Counter[str]()
        self._spy()

    def ask(self, name: str, prompt: int, answer: int, flow: str) -> None:
        tokens = [self.random.randrange(1, VOCAB_SIZE) for _ in range(prompt)]
        space = OTHER if flow == QUIET else NAMESPACE
        request = generate(name, tokens, max_tokens=answer, flow=flow, namespace=space)
        self.asked[name] = request, self.rig.stepped
        self.rig.submit(request)

    def flood(self) -> None:
        waiting = Counter(one.flow for one in self.rig.scheduler.queue)
        for flow in FLOODS:
            for _ in range(BACKLOG - waiting[flow]):
                prompt, answer = self.random.randrange(2, 40), self.random.randrange(2, 60)
                self.ask(f"{flow}/{len(self.asked)}", prompt, answer, flow)

    def step(self) -> None:
        self.rig.step()
        for message in self.rig.link.sent.pop(CLIENT, []):
            for event in message.events if isinstance(message, StepReply) else ():
                name = event.request_id
                if isinstance(event, Tokens):
                    self.heard.first.setdefault(name, self.rig.stepped)
                    self.heard.tokens.setdefault(name, []).extend(event.token_ids)
                else:
                    assert isinstance(event, Finished), event
                    self.heard.ended.add(name)

    def burst(self, at_once: int) -> list[int]:
        """Send several quiet requests at once; return how many steps each waits for its first
        token.
        """
        names = [f"{QUIET}/{len(self.asked) + n}" for n in range(at_once)]
        for name in names:
            self.ask(name, PROMPT, ANSWER, QUIET)
        while not self.heard.ended.issuperset(names):
            self.flood()
            self.step()
        return [self.heard.first[name] - self.asked[name][1] for name in names]

    def run_out(self) -> None:
        for _ in range(20_000):
            if self.rig.core.is_idle:
                break
            self.step()
        assert self.heard.ended == self.asked.keys(), "every request ended"
        for name, (request, _) in self.asked.items():
            prompt = memoryview(request.token_ids).cast("i").tolist()
            assert self.heard.tokens[name] == expected_output(prompt, request.sampling.max_tokens)
        self.rig.expect_nothing_left()

    def _spy(self) -> None:
        active = self.rig.scheduler.active
        preempt = active.preempt

        def noting(sequence: Sequence, now: float) -> None:
            self.preempted[sequence.flow] += 1
            preempt(sequence, now)

        active.preempt = noting  # type: ignore[method-assign]


def divided(random: Random, **settings: object) -> tuple[FloodedEngine, int]:
    """Return an engine with a share for each flow, and the number of requests that fit into the
    quiet flow's share.
    """
    blocks = random.randint(110, 180)
    flooded = FloodedEngine(random, num_blocks=blocks, context_len=100, **settings)
    weights = {flow: random.choice([1.0, 2.0]) for flow in (*FLOODS, QUIET)}
    flows = {flow: FlowQuota(weight=weight) for flow, weight in weights.items()}
    flooded.rig.link.say(Partition(flows=flows))
    part = (blocks - 25) * weights[QUIET] / sum(weights.values())
    return flooded, min(int(part) // 4, 6)


SEEDS = [*range(3), *in_the_zoo(*range(3, 40))]
FEW = [0, *in_the_zoo(1, 2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_within_a_part_starts_at_once(seed: int) -> None:
    random = Random(seed)
    flooded, at_once = divided(
        random, max_running=64, overlap_scheduling=random.random() < 0.5, quantum=16
    )
    for _ in range(8):
        for _ in range(random.randrange(1, 30)):
            flooded.flood()
            flooded.step()
        assert max(flooded.burst(at_once)) <= 6, "its prompts and the floods' share steps"
    assert not flooded.preempted[QUIET]
    assert sum(flooded.preempted[flow] for flow in FLOODS) > 0, "the control"
    flooded.run_out()


@pytest.mark.parametrize("seed", FEW)
def test_blocks_that_are_copied_down_first_come_back_too(seed: int) -> None:
    flooded, at_once = divided(Random(seed), max_running=64, tiers=Tiers(host_blocks=64), seed=seed)
    for _ in range(6):
        flooded.burst(at_once)
    assert not flooded.preempted[QUIET]
    flooded.run_out()


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("short", ["batch slots", "state slots", "both, pooled", "rings"])
def test_slots_come_back_too(short: str, seed: int) -> None:
    """Divide the slots among three flows, whose answers take up to 60 steps."""
    states = {"batch slots": 0, "state slots": 25}.get(short, 61)
    running = 64 if short == "state slots" else 12
    flooded = FloodedEngine(
        Random(seed),
        num_blocks=2_000,
        context_len=100,
        max_running=running,
        num_states=states,
        in_place=short == "rings",
    )
    if "pooled" not in short:
        flooded.rig.link.say(Partition(flows={flow: FlowQuota() for flow in (*FLOODS, QUIET)}))
    for _ in range(5):
        for _ in range(30):
            flooded.flood()
            flooded.step()
        waits = sorted(flooded.burst(4))
        assert waits[0] <= 4
        assert waits[-1] <= 12
    assert sum(flooded.preempted[flow] for flow in FLOODS) > 0, "the control"
    flooded.run_out()


@pytest.mark.parametrize("seed", FEW)
def test_requests_larger_than_parts_end_too(seed: int) -> None:
    """End all requests on a device with less room than two of the longest, which therefore run
    alone.
    """
    random = Random(seed)
    flooded = FloodedEngine(random, num_blocks=36, context_len=130, max_running=6)
    flows = {flow: FlowQuota() for flow in (*FLOODS, QUIET)}
    flooded.rig.link.say(Partition(flows=flows))
    for number in range(150):
        if number % 3 == 0:
            flooded.ask(f"large/{number}", random.randrange(40, 120), 9, random.choice(FLOODS))
        flooded.ask(f"small/{number}", random.randrange(2, 20), 9, random.choice([*flows]))
        flooded.step()
    flooded.run_out()


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("how", ["drafts", "stages"])
def test_growing_answers_take_back_from_elder_ones(how: str, seed: int) -> None:
    """Take blocks back for growing answers while no request waits, so that each step may have
    drafts.
    """
    random = Random(seed)
    settings = {"stages": 2} if how == "stages" else {"drafting": drafting(0.3)}
    flooded = FloodedEngine(random, num_blocks=80, context_len=72, max_running=16, **settings)
    flooded.rig.link.say(Partition(flows={flow: FlowQuota() for flow in (*FLOODS, QUIET)}))
    for visit in range(6):
        for number in range(5):
            prompt, answers = random.randrange(2, 10), random.randrange(20, 60)
            flooded.ask(f"{visit}.{number}", prompt, answers, random.choice(FLOODS))
        for _ in range(random.randrange(1, 25)):
            flooded.step()
        quiet = [f"{QUIET}/{visit}.{number}" for number in range(2)]
        for name in quiet:
            flooded.ask(name, 8, 12, QUIET)
        while not flooded.heard.ended.issuperset(quiet):
            flooded.step()
    flooded.run_out()
    assert not flooded.preempted[QUIET]
    assert sum(flooded.preempted.values()) > 0, "the control"


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("num_states", [0, 41])
def test_answers_with_a_grammar_give_room_and_take_it(num_states: int, seed: int) -> None:
    random = Random(seed)
    rig = Rig(
        num_blocks=60,
        context_len=60,
        max_running=16,
        max_batch_tokens=BUDGET,
        constraint_of=steps_of,
        masks=HeldMasks(),
        num_states=num_states,
        check_every=10,
    )
    rig.link.say(Partition(flows={flow: FlowQuota() for flow in "abc"}))
    asked: dict[str, tuple[list[int], int]] = {}
    for number in range(40):
        prompt = [random.randrange(1, VOCAB_SIZE) for _ in range(random.randrange(2, 12))]
        asked[f"r{number}"] = prompt, random.randrange(3, 40)
        rig.submit(bound(f"r{number}", *asked[f"r{number}"], flow=random.choice("abc")))
        rig.step(random.randrange(3))
    rig.run()
    assert {name: rig.link.tokens(name) for name in asked} == {
        name: answer(*request) for name, request in asked.items()
    }
    assert rig.core.stats().preemptions > 0, "the control"
    rig.expect_nothing_left()
