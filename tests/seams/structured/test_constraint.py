"""A constraint on the next token holds beside any other rows, and delays only its own sequence."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import pytest

from engine.errors import ConstraintUnsatisfied
from engine.link.event_messages import Failed
from engine.link.messages import SamplingParams
from engine.sequences.token_constraint import MadeOnDemand, MaskMaker
from prefix_cache.namespace import Namespace
from tests.doubles.constraints import Allows, all_but
from tests.engine.rigs.checkpoints import VOCAB_SIZE, Checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACE = Namespace(b"n" * 16)
MAX_TOKENS = 12
BOUND = 77  # the seed of the request with a constraint
PROMPT = random_prompt(21)
NEIGHBOURS = {"greedy": sampling(MAX_TOKENS), "drawn": sampling(MAX_TOKENS, 0.9, seed=5, top_p=0.9)}
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.7},
    "filtered": {"temperature": 0.7, "top_k": 8},
    "adjusted": {"repetition_penalty": 1.2, "num_logprobs": 2},
}
both = pytest.mark.parametrize("overlap_scheduling", [False, True])
with_and_without_graphs = pytest.mark.parametrize("graph_tokens", [0, 64])


class House:
    """An engine in which the request with the seed `BOUND` may use only some tokens."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        allowed: Collection[int] | None = None,
        *,
        most: int | None = None,
        overlap_scheduling: bool = False,
        graph_tokens: int = 0,
        masks: MaskMaker | None = None,
    ) -> None:
        """Make an engine. With `allowed`, the request may use only these tokens, up to `most`."""
        self.made: list[Allows] = []
        bounds = Bounds(64, 16, 64, 8, overlap_scheduling, graph_tokens)

        def constraint_of(wish: SamplingParams, flow: str) -> Allows | None:
            if wish.seed != BOUND or allowed is None:
                return None
            self.made.append(Allows(allowed, VOCAB_SIZE, most))
            return self.made[-1]

        model_dir = str(checkpoint.model_dir)
        self.engine = RealEngine(model_dir, bounds, constraint_of=constraint_of, masks=masks)

    def run(self, wish: SamplingParams) -> None:
        """Run the constrained request, with one neighbour before and one after it."""
        asked = {"before": NEIGHBOURS["greedy"], "bound": wish, "after": NEIGHBOURS["drawn"]}
        for seed, (name, wish_of) in enumerate(asked.items()):
            prompt = PROMPT if name == "bound" else random_prompt(9, seed=seed + 1)
            self.engine.submit(name, prompt, wish_of, namespace=NAMESPACE)
        self.engine.run()

    def neighbours(self) -> list[list[int]]:
        return [self.engine.tokens(name) for name in ("before", "after")]


def bound(**how: Any) -> SamplingParams:
    return sampling(MAX_TOKENS, **{"seed": BOUND, "ignore_eos": True, **how})


def said(house: House, wish: SamplingParams) -> list[int]:
    house.run(wish)
    return house.engine.tokens("bound")


@both
@with_and_without_graphs
@pytest.mark.parametrize("how", HOW)
def test_what_is_forbidden_is_never_said_and_the_neighbours_say_what_they_say_anyway(
    checkpoint: Checkpoint, how: str, overlap_scheduling: bool, graph_tokens: int
) -> None:
    make = partial(
        House, checkpoint, overlap_scheduling=overlap_scheduling, graph_tokens=graph_tokens
    )
    free = make()
    freely = said(free, bound(**HOW[how]))
    likely = freely[3]
    house = make(all_but(likely, VOCAB_SIZE))
    other = said(house, bound(**HOW[how]))
    assert likely not in other
    assert len(other) == MAX_TOKENS
    first = freely.index(likely)
    # With top_k, a banned token makes room for a less likely token, so even allowed draws may
    # differ.
    if how != "filtered":
        assert other[:first] == freely[:first], "what is allowed stays as it is"
    assert house.made[0].told == other
    assert house.neighbours() == free.neighbours()
    house.engine.expect_nothing_left()


@both
def test_without_the_constraint_the_token_comes(
    checkpoint: Checkpoint, overlap_scheduling: bool
) -> None:
    greedy = checkpoint.greedy(PROMPT, MAX_TOKENS)
    make = partial(House, checkpoint, overlap_scheduling=overlap_scheduling)
    assert said(make(), bound()) == greedy
    never = next(token for token in range(VOCAB_SIZE) if token not in greedy)
    assert said(make(all_but(never, VOCAB_SIZE)), bound()) == greedy


@both
def test_who_is_constrained_is_in_every_step_as_its_neighbours_are(
    checkpoint: Checkpoint, overlap_scheduling: bool
) -> None:
    # makes masks in time; on a busy machine a thread may be late, and the row would be left out
    in_time = MadeOnDemand()
    house = House(
        checkpoint, range(VOCAB_SIZE), overlap_scheduling=overlap_scheduling, masks=in_time
    )
    house.run(bound())
    steps = house.engine.steps
    assert all({"before", "after"} <= {*step} for step in steps[:MAX_TOKENS])
    for name in ("before", "bound", "after"):
        assert sum(name in step for step in steps) == MAX_TOKENS
    assert all("bound" in step for step in steps[:MAX_TOKENS])


@both
def test_a_constraint_that_leaves_nothing_fails_its_request_alone(
    checkpoint: Checkpoint, overlap_scheduling: bool
) -> None:
    make = partial(House, checkpoint, overlap_scheduling=overlap_scheduling)
    free, house = make(), make(range(VOCAB_SIZE), most=3)
    freely = said(free, bound())
    house.run(bound())
    engine = house.engine
    end = engine.link.last("bound")
    assert isinstance(end, Failed)
    assert end.code == ConstraintUnsatisfied.code
    assert engine.link.tokens("bound") == freely[:3]
    assert house.neighbours() == free.neighbours()
    engine.submit("again", PROMPT, sampling(2), namespace=NAMESPACE)
    engine.run()
    assert engine.finished("again").reused.tokens == 16, "its whole block is sound, and stays"
    engine.expect_nothing_left()


@pytest.mark.parametrize("min_tokens", [0, 2])
def test_a_constraint_and_the_request_may_leave_nothing_together(
    checkpoint: Checkpoint, min_tokens: int
) -> None:
    """The constraint allows only a stop token, but `min_tokens` excludes stop tokens at first."""
    house = House(checkpoint, [7])
    house.run(bound(stop_token_ids=[7], min_tokens=min_tokens))
    end = house.engine.link.last("bound")
    if min_tokens:
        assert isinstance(end, Failed)
        assert end.code == ConstraintUnsatisfied.code
    else:
        assert house.engine.tokens("bound") == [7]


def test_a_constraint_lasts_over_a_preemption(checkpoint: Checkpoint) -> None:
    whole = said(House(checkpoint, all_but(5, VOCAB_SIZE)), bound())
    house = House(checkpoint, all_but(5, VOCAB_SIZE), overlap_scheduling=True)
    engine = house.engine
    engine.submit("bound", PROMPT, bound(), namespace=NAMESPACE)
    for _ in range(6):
        engine.step()
    scheduler = engine.core.components.scheduler
    [sequence] = scheduler.running
    assert 0 < sequence.num_output < MAX_TOKENS
    scheduler.active.preempt(sequence, engine.core.components.clock())
    engine.run()
    assert engine.tokens("bound") == whole == house.made[0].told
