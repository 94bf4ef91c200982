"""Requests of every kind get the same answers with any drafts as without drafts.

This uses the embedded model with its own tokenizer and grammars. It compares tokens, reasons of
ends, and log-probabilities up to rounding. `tests.engine.sampling.test_drafts` compares samples
from equal logits bit by bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.drafting.acceptance import MOST_DRAFTS
from engine.drafting.composition import choose_drafts
from engine.drafting.draft import Draft, Drafting, NoDrafts
from engine.drafting.forced import forced_tokens
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammars import Grammars
from engine.grammars.step_time import StepTime
from engine.grammars.vocabulary import read_vocabulary
from engine.link.event_messages import Failed, Finished, Tokens
from engine.link.messages import Grammar, SamplingParams
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.engine.rigs.hand_driven import sampling
from tests.examples import in_the_zoo
from tests.seams.support.real_engine import Bounds, RealEngine

MODEL = Path(__file__).parents[3] / "handbook" / "model"
NAMESPACE = Namespace(b"n" * 16)
BOUNDS = Bounds(256, 16, 256, 256)
SCHEMA = {
    "type": "object",
    "properties": {
        "support_code": {"type": "integer"},
        "department": {"enum": ["sales", "support", "purchasing"]},
        "name": {"type": "string", "maxLength": 12},
    },
    "required": ["support_code", "department", "name"],
    "additionalProperties": False,
}
GRAMMARS = [
    None,
    None,
    Grammar("json_schema", json.dumps(SCHEMA)),
    Grammar("json_schema", '{"type": "object"}'),
    Grammar("regex", "(the |a |code |[0-9]{4} ){3,9}(yes|no)"),
    Grammar(
        "lark", 'start: part+ "."\npart: "code " /[0-9]+/ | "door " /[a-z]+/ | x\nx: "X" | "Y"'
    ),
]


@dataclass
class Answer:
    """Everything that a client gets for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[bytes] = field(default_factory=list)
    end: str = ""


def answer_of(engine: RealEngine, name: str) -> Answer:
    """Collect a request's answer, which may end early because options together allow no token."""
    answer = Answer(engine.link.tokens(name))
    for event in engine.link.events(name):
        match event:
            case Tokens():
                answer.logprobs += [one.chosen for one in event.logprobs or ()]
                answer.likeliest += [one.top_ids for one in event.logprobs or ()]
            case Finished():
                answer.end = f"{event.reason} {event.stop_token_id} {event.completion_tokens}"
                answer.tokens += [] if event.stop_token_id is None else [event.stop_token_id]
            case Failed():
                answer.end = f"{event.code} {event.completion_tokens}"
    return answer


def wish_of(random: Random) -> SamplingParams:
    """Draw sampling options: a single option, or several together."""
    options: dict[str, Any] = {}
    if random.random() < 0.5:
        options |= {"presence_penalty": random.uniform(-1, 1), "frequency_penalty": 0.3}
    if random.random() < 0.3:
        options |= {"repetition_penalty": random.uniform(0.7, 1.6)}
    if random.random() < 0.3:
        options |= {"top_k": random.randint(2, 40), "top_p": random.uniform(0.5, 1.0)}
    if random.random() < 0.2:
        options |= {"min_p": 0.05}
    if random.random() < 0.3:
        options |= {"logit_bias": {random.randrange(4, 400): random.uniform(-5, 5)}}
    if random.random() < 0.4:
        options |= {"min_tokens": random.randint(1, 12)}
        options |= {"stop_token_ids": [random.randrange(4, 400) for _ in range(40)]}
    if random.random() < 0.5:
        options |= {"num_logprobs": random.randint(0, 4)}
    return sampling(
        random.randint(1, 40),
        random.choice([0.0, 0.0, 0.7, 1.3]),
        seed=random.randrange(99),
        ignore_eos=random.random() < 0.3,
        grammar=random.choice(GRAMMARS),
        **options,
    )


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    """Make grammars with an hour of time per step, so that even a busy host finds forced tokens."""
    compiler = GrammarCompiler(read_vocabulary(MODEL, vocab_size=2048, eos_token_ids=(1,)))
    made = Grammars(compiler, step_time=StepTime(step_s=3600.0))
    yield made
    made.close()


@dataclass
class Requests:
    """Prompts and options, drawn from a seed."""

    seed: int
    count: int = 12

    def __post_init__(self) -> None:
        random, tokenizer = Random(self.seed), Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        self.asked = []
        for number in range(self.count):
            text = f"The support code for Berlin is {1000 + number}. What is the code? {number}"
            self.asked.append((tokenizer.encode(text).ids, wish_of(random)))

    def answers(self, engine: RealEngine, time: str = "") -> dict[str, Answer]:
        """Let an engine answer all requests together. Request ids contain `time`."""
        for number, (prompt, wish) in enumerate(self.asked):
            engine.submit(f"{time}{number}", prompt, wish, namespace=NAMESPACE)
        engine.run()
        return {str(number): answer_of(engine, f"{time}{number}") for number in range(self.count)}


class WithForced(ScriptedDrafting):
    """Drafts of a script, or tokens forced by a grammar if there are any."""

    num_forced = 0

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        """Draft for some of the sequences."""
        drafts = super().propose(decodes)
        for sequence in decodes:
            is_drawn, drafter = self.random.random() < 0.9, forced_tokens(sequence)
            if drafter is None or not is_drawn:
                continue
            # wait for the mask: on a busy machine every mask may be late, and no token forced
            while drafter.constraint.is_busy:
                time.sleep(0.001)
            if token_ids := drafter.draft(sequence.num_tokens, self.most):
                drafts[sequence] = Draft(token_ids, drafter.source)
                self.num_forced += 1
        return drafts


def drafting(told: dict[str, Answer], wrong: float, seed: int) -> WithForced:
    """Return a drafter of the answers in `told`, in which the share `wrong` of tokens is wrong."""

    def follows(sequence: Sequence, most: int) -> list[int]:
        return told[sequence.request_id].tokens[sequence.num_output :][:most]

    return WithForced(follows, 400, wrong, MOST_DRAFTS, often=0.8, random=Random(seed))


def expect_same(answers: dict[str, Answer], told: dict[str, Answer]) -> None:
    """Check that every answer equals the answer in `told`."""
    for name, answer in answers.items():
        assert answer.logprobs == pytest.approx(told[name].logprobs, abs=1e-4)
        assert replace(answer, logprobs=[]) == replace(told[name], logprobs=[])


CASES = [(0, 0.0, 64), (1, 0.2, 0), (3, 0.6, 64)]
OTHERS = [(2, 0.2, 0), (4, 1.0, 64)]
OTHERS += [(seed, wrong, 64 - graph_tokens) for seed, wrong, graph_tokens in CASES + OTHERS]


@pytest.mark.parametrize(
    ("seed", "wrong", "graph_tokens"),
    [*CASES, *in_the_zoo(*OTHERS)],
)
def test_drafts_change_nothing(
    grammars: Grammars, seed: int, wrong: float, graph_tokens: int
) -> None:
    requests = Requests(seed)
    plain = RealEngine(str(MODEL), BOUNDS, drafting=NoDrafts())
    told = requests.answers(plain)
    plain.close()
    drafts = drafting(told, wrong, seed)
    bounds = replace(BOUNDS, overlap_scheduling=bool(seed % 2), graph_tokens=graph_tokens)
    engine = RealEngine(
        str(MODEL),
        bounds,
        drafting=drafts,
        constraint_of=grammars.constraint_of,
        masks=grammars.masks,
    )
    expect_same(requests.answers(engine), told)
    accepted = sum(one.accepted_tokens for one in engine.core.stats().drafts.values())
    engine.expect_nothing_left()
    engine.close()
    assert accepted > (0 if wrong == 1.0 else 20)
    assert drafts.num_forced > 0 or seed != 3, "grammars of other seeds hardly force a token"


class Later(NoDrafts):
    """A drafter that is chosen once the engine exists."""

    chosen: Drafting | None = None
    longest = 0  # tokens of the longest draft so far

    def prepare(self, sequence: Sequence) -> None:
        if self.chosen is not None:
            self.chosen.prepare(sequence)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        return self.chosen is not None and self.chosen.is_worth_waiting(decodes)

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        drafts = {} if self.chosen is None else self.chosen.propose(decodes)
        self.longest = max([self.longest, *(len(one.token_ids) for one in drafts.values())])
        return drafts

    def ended(self, sequence: Sequence) -> None:
        if self.chosen is not None:
            self.chosen.ended(sequence)


@pytest.mark.parametrize("overlap_scheduling", [False, True])
def test_an_engines_own_drafts_change_nothing(grammars: Grammars, overlap_scheduling: bool) -> None:
    """The requests are sent twice, and the second time the first answers can be drafted."""
    requests, drafting = Requests(7), Later()
    bounds = replace(BOUNDS, overlap_scheduling=overlap_scheduling)
    engine = RealEngine(
        str(MODEL),
        bounds,
        drafting=drafting,
        constraint_of=grammars.constraint_of,
        masks=grammars.masks,
    )
    told = requests.answers(engine)
    drafting.chosen = choose_drafts(engine.cache.tree, lambda rows: None)
    before = len(engine.steps)
    expect_same(requests.answers(engine, "again "), told)
    assert len(engine.steps) - before < before
    drafted = engine.core.stats().drafts
    assert all(drafted[source].accepted_tokens > 0 for source in ("tree", "grammar")), drafted
    assert not drafting.chosen._rows, "no ended sequence is prepared for"
    engine.expect_nothing_left()
    engine.close()


@pytest.mark.parametrize(
    "wish",
    [
        sampling(300, ignore_eos=True, num_logprobs=2),
        sampling(300, 0.5, seed=5, ignore_eos=True, frequency_penalty=-1.0),
    ],
    ids=["greedy", "seeded and penalised"],
)
def test_an_answer_that_repeats_itself_is_drafted_at_full_length(wish: SamplingParams) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    prompt = tokenizer.encode("The door code for Oslo is 1417. " * 8).ids
    told: list[Answer] = []
    for is_drafted in (False, True):
        drafting = Later()
        engine = RealEngine(str(MODEL), BOUNDS, drafting=drafting)
        if is_drafted:
            drafting.chosen = choose_drafts(engine.cache.tree, lambda rows: 1.0, most_rows=256)
        engine.submit("a", prompt, wish, namespace=NAMESPACE)
        engine.run()
        told.append(answer_of(engine, "a"))
        assert (len(engine.steps) < 100) is is_drafted
        assert drafting.longest == (MOST_DRAFTS if is_drafted else 0)
        engine.close()
    expect_same({"a": told[1]}, {"a": told[0]})
