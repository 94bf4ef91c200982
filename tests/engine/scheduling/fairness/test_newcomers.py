"""A small request waits only for the running step and its own prefill, whatever floods other flows
send.

Waits are counted in steps of the real queue, scheduler and cache. The engine looks for messages
after a running step, so a request in the next step has waited for 0 steps.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.link.messages import FlowQuota, Partition
from engine.scheduling.fairness.queue import QueueLimits
from tests.engine.rigs.market import Market, Shopper, documents
from tests.engine.rigs.rig import OTHER, Rig, generate
from tests.examples import in_the_zoo

BUDGET, BATCH_SLOTS, QUANTUM = 128, 8, 128
QUESTIONS = 6
MAX_STEP_S = 0.15  # a step of BUDGET tokens takes `WeightlessRunner` 0.136 s

FLOODS: dict[str, dict[str, Any]] = {
    "long answers on every slot": {"documents": documents(40, 16, 3), "output": 400},
    "long prompts": {"documents": documents(40, 1000, 3), "output": 1},
    "long prompts and answers": {"documents": documents(40, 600, 3), "output": 60},
    "short requests": {"documents": documents(400, 8, 3), "output": 2},
    "warm requests": {"documents": documents(1, 200, 3), "output": 8},
}


def market_of(
    flood: str,
    *,
    prompt: int = 24,
    flooders: int = 1,
    num_blocks: int = 4000,
    flow: str | None = None,
    backlog: int = 200,
    max_step_s: float | None = None,
) -> Market:
    """Make an engine with one tenant that asks a few questions, and `flooders` tenants that ask
    many.
    """
    crowd = [
        Shopper(f"flood{n}", **FLOODS[flood], backlog=backlog, flow=flow) for n in range(flooders)
    ]
    quiet = Shopper("quiet", [[]], suffix=prompt, backlog=1, output=4, flow=flow, most=0)
    queue = QueueLimits(quantum=QUANTUM, greed=100.0, lookahead=1 if flow else 16)
    market = Market(
        [*crowd, quiet],
        num_blocks=num_blocks,
        queue=queue,
        max_batch_tokens=BUDGET,
        max_running=BATCH_SLOTS,
        max_step_s=max_step_s,
    )
    drawn = random.Random(7)
    market.run(50)
    for number in range(1, QUESTIONS + 1):
        quiet.most = number
        market.run(1)
        for _ in range(200):
            if len(quiet.queued_steps) == number:
                break
            market.run(1)
        # Reading an answer takes the quiet tenant some time, in which other tenants may have
        # computed as much.
        market.run((10 + drawn.randrange(20)) * max(1, prompt // 150))
    market.core.check_invariants()
    assert all(shopper.sent > backlog for shopper in crowd)
    return market


def flooded(flood: str, **more: Any) -> list[int]:
    """Return how many steps each of the quiet tenant's questions waited for its first token."""
    return market_of(flood, **more).shoppers[-1].queued_steps


@pytest.mark.parametrize("max_step_s", [None, MAX_STEP_S])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_question_is_in_the_next_step(flood: str, max_step_s: float | None) -> None:
    assert flooded(flood, max_step_s=max_step_s) == [0] * QUESTIONS


@pytest.mark.parametrize("flood", [name for name, sent in FLOODS.items() if sent["output"] > 2])
def test_the_step_that_it_waits_for_is_a_small_one(flood: str) -> None:
    """Wait for a small step: the decodes, the question, and as many tokens of other prompts.

    This holds if the flood always has a running request. Otherwise the flood itself is sometimes a
    newcomer.
    """
    prompt = 24
    steps = market_of(flood, prompt=prompt, max_step_s=MAX_STEP_S).runner.steps
    asked = [tokens for tokens in steps if tokens["quiet"] == prompt]
    assert len(asked) == QUESTIONS
    assert max(tokens.total() for tokens in asked) <= 2 * prompt + BATCH_SLOTS
    if "prompts" in flood:
        # positive control: other steps use the whole budget
        assert max(tokens.total() for tokens in steps) == BUDGET


@pytest.mark.parametrize("flood", [name for name in FLOODS if "long prompts" in name])
def test_beside_a_newcomer_others_have_little_of_a_step(flood: str) -> None:
    """Give little work to steps that a newcomer waits for; only fixed costs set their size."""
    prompt, small = 24, BUDGET // 2 + BATCH_SLOTS
    runner = market_of(flood, prompt=prompt, max_step_s=MAX_STEP_S).runner
    asked = [number for number, step in enumerate(runner.steps) if step["quiet"] > 1]
    assert len(asked) == QUESTIONS
    assert max(runner.steps[number].total() for number in asked) <= small
    assert max(runner.steps[number - 1].total() for number in asked[2:]) <= small
    assert sum(step["flood0"] for step in runner.steps) > 10 * QUESTIONS * prompt
    # positive control: other steps use the whole budget
    assert max(step.total() for step in runner.steps) == BUDGET


def test_a_flow_that_is_alone_gets_the_whole_first_step() -> None:
    many = Shopper("alone", [[]], suffix=24, backlog=10)
    market = Market([many], num_blocks=1000, max_batch_tokens=BUDGET, max_running=BATCH_SLOTS)
    market.run(1)
    assert market.runner.steps[0].total() == BUDGET


@pytest.mark.parametrize("max_step_s", [MAX_STEP_S, *in_the_zoo(None)])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_long_one_has_half_of_each_step_at_least(flood: str, max_step_s: float | None) -> None:
    steps = 5
    waited = flooded(flood, prompt=steps * (BUDGET - BATCH_SLOTS), max_step_s=max_step_s)
    assert max(waited) < 2 * steps


@pytest.mark.parametrize("max_step_s", [None, MAX_STEP_S])
@pytest.mark.parametrize("flooders", [2, 3])
def test_a_question_is_in_the_next_step_beside_several_floods(
    flooders: int, max_step_s: float | None
) -> None:
    waited = flooded("long prompts and answers", flooders=flooders, max_step_s=max_step_s)
    assert waited == [0] * QUESTIONS


@pytest.mark.parametrize("max_step_s", [None, MAX_STEP_S])
def test_a_question_is_in_the_next_step_beside_a_flood_that_holds_every_block(
    max_step_s: float | None,
) -> None:
    """Give the newcomer the blocks of one of the flood's sequences, of which seven fit."""
    waited = flooded("long prompts and answers", num_blocks=7 * 170, max_step_s=max_step_s)
    assert waited == [0] * QUESTIONS


@pytest.mark.parametrize("is_divided", [False, True])
def test_a_question_is_in_the_next_step_beside_answers_that_outgrow_the_room(
    *, is_divided: bool
) -> None:
    """Answer in the next step, although some steps preempt a sequence of the flood for another
    sequence's tokens.
    """
    rig = Rig(num_blocks=128, max_running=32, max_batch_tokens=64, context_len=48, check_every=50)
    if is_divided:
        rig.link.say(Partition(flows={"flood": FlowQuota(), "quiet": FlowQuota()}))
    for number in range(96):
        rig.submit(generate(f"flood{number}", [7, 7, 7], max_tokens=40, flow="flood"))
    rig.step(3)
    preempting = 0
    for number in range(60):
        before = rig.core.stats().preemptions
        asked = generate(f"q{number}", [9, 8, number], max_tokens=1, flow="quiet", namespace=OTHER)
        rig.submit(asked)
        rig.step()
        assert rig.finished(asked.request_id), "it was in the step"
        preempting += rig.core.stats().preemptions > before
    assert preempting > 5, "the control"


@pytest.mark.parametrize("flood", ["long answers on every slot", "long prompts"])
def test_a_question_in_one_flow_with_the_flood_waits(flood: str) -> None:
    """Send the question in the flood's own flow (positive control): it is answered after the
    flood.
    """
    waited = flooded(flood, flow="all", backlog=20)
    assert waited
    assert min(waited) > 20
