"""An engine with drafts gives the same tokens as one without, bit for bit, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

from engine.drafting.answers import EarlierAnswers
from engine.link.messages import SamplingParams
from prefix_cache.namespace import Namespace
from tests.doubles.engine.drafting.late_drafting import LateDrafting
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACE = Namespace(b"n" * 16)
PROMPT = random_prompt(24)
WISHES = {
    "greedy": sampling(40),
    "drawn": sampling(40, 0.7, seed=3),
    "filtered": sampling(40, 0.8, seed=4, top_k=20, top_p=0.9, num_logprobs=2),
}
BOUNDS = Bounds(128, 16, 64, 8)


def engine(checkpoint: Checkpoint, bounds: Bounds = BOUNDS, *, drafts: bool = True) -> RealEngine:
    bounds = replace(bounds, drafts=drafts)
    return RealEngine(str(checkpoint.model_dir), bounds, clock=steady_clock())


def steady_clock() -> Callable[[], float]:
    """Return a clock on which all steps take as long, since it gains 1 ms at each reading.

    Where a busy machine makes a verifying step slow, the engine drafts fewer tokens.
    """
    return partial(next, count(0.0, 0.001))


def replayed(one: RealEngine, wish: SamplingParams, times: int = 3) -> list[list[int]]:
    """Answer a prompt several times, one after the other; return the tokens."""
    for number in range(times):
        one.submit(str(number), PROMPT, wish, namespace=NAMESPACE)
        one.run()
    return [one.tokens(str(number)) for number in range(times)]


@pytest.mark.parametrize("wish", WISHES)
def test_a_replay_is_drafted_from_the_tree_and_says_the_same(
    checkpoint: Checkpoint, wish: str
) -> None:
    drafting, plain = engine(checkpoint), engine(checkpoint, drafts=False)
    assert replayed(drafting, WISHES[wish]) == replayed(plain, WISHES[wish])
    drafted, accepted = drafting.finished("1").drafts["tree"]
    assert accepted > 10
    assert accepted > 0.8 * drafted
    assert len(drafting.steps) <= len(plain.steps) - 20
    assert plain.finished("1").drafts == {}
    drafting.expect_nothing_left()


def test_graphs_and_overlapping_steps_say_the_same(checkpoint: Checkpoint) -> None:
    bounds = Bounds(128, 16, 64, 8, overlap_scheduling=True, graph_tokens=64)
    drafting, plain = engine(checkpoint, bounds), engine(checkpoint, bounds, drafts=False)
    assert replayed(drafting, WISHES["drawn"]) == replayed(plain, WISHES["drawn"])
    assert drafting.finished("1").drafts["tree"][1] > 10
    assert len(drafting.steps) < len(plain.steps)


@pytest.mark.parametrize(("name", "kv_dtype"), [("mistral-window", "auto"), ("gpt-oss", "fp8")])
def test_windows_and_fp8_kv_say_the_same(
    name: str, kv_dtype: Literal["auto", "fp8"], tmp_path: Path
) -> None:
    model_dir = str(make_checkpoint(RECIPES[name], tmp_path).model_dir)
    bounds, late = replace(BOUNDS, kv_dtype=kv_dtype), LateDrafting(EarlierAnswers)
    drafting = RealEngine(model_dir, bounds, drafting=late, clock=steady_clock())
    plain = RealEngine(model_dir, bounds)
    late.attach(drafting.cache.tree)
    assert replayed(drafting, WISHES["drawn"]) == replayed(plain, WISHES["drawn"])
    assert drafting.finished("1").drafts["tree"][1] > 10
    drafting.expect_nothing_left()


def test_nothing_is_drafted_from_another_namespace(checkpoint: Checkpoint) -> None:
    """Draft nothing from another namespace.

    The first test of this file is the positive control: there the namespace is the same.
    """
    one = engine(checkpoint)
    wish = WISHES["drawn"]
    one.submit("mine", PROMPT, wish, namespace=NAMESPACE)
    one.run()
    one.submit("yours", PROMPT, wish, namespace=Namespace(b"o" * 16))
    one.run()
    assert one.tokens("yours") == one.tokens("mine")
    assert "tree" not in one.finished("yours").drafts


def test_an_answer_is_drafted_for_another_prompt_of_its_namespace(checkpoint: Checkpoint) -> None:
    """The prompts have equal ends, and so a tiny model's greedy answers to them have equal ends."""
    one, plain = engine(checkpoint), engine(checkpoint, drafts=False)
    for other, is_drafted in ((b"o", False), (b"n", True)):
        for number, prompt in enumerate((PROMPT, PROMPT[1:])):
            name = f"{other!r}{number}"
            where = Namespace((b"n", other)[number] * 16)
            for each in (one, plain):
                each.submit(name, prompt, WISHES["greedy"], namespace=where)
                each.run()
            assert one.tokens(name) == plain.tokens(name)
        assert ("answers" in one.finished(name).drafts) == is_drafted
    one.expect_nothing_left()
