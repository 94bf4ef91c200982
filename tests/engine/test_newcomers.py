"""Who asks for little waits for the step under way and its own prefill, whatever others flood with.

Counted in steps, with the real queue, scheduler and cache. A step under way has ended when the
engine looks for messages, so to be in the next one is to wait for 0 steps.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.queue import QueueLimits
from tests.engine.market import Market, Shopper, documents

BUDGET, SEATS, QUANTUM = 128, 8, 128
QUESTIONS = 16

FLOODS: dict[str, dict[str, Any]] = {
    "long answers on every seat": {"documents": documents(40, 16, 3), "output": 400},
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
    beside_visitors: int | None = None,
) -> Market:
    """What became of a quiet tenant's questions beside so many that flood."""
    crowd = [Shopper(f"flood{n}", **FLOODS[flood], backlog=200, flow=flow) for n in range(flooders)]
    quiet = Shopper("quiet", [[]], suffix=prompt, backlog=1, output=4, flow=flow, most=0)
    queue = QueueLimits(quantum=QUANTUM, greed=100.0, lookahead=1 if flow else 16)
    market = Market(
        [*crowd, quiet],
        num_blocks=num_blocks,
        queue=queue,
        max_batch_tokens=BUDGET,
        max_running=SEATS,
        beside_visitors=beside_visitors,
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
        # It reads the answer for so long that others may have computed as much meanwhile.
        market.run((10 + drawn.randrange(20)) * max(1, prompt // 150))
    market.core.check_invariants()
    assert all(shopper.sent > 200 for shopper in crowd)
    return market


def flooded(flood: str, **more: Any) -> list[int]:
    """The steps that each of the quiet tenant's questions waited for its first token."""
    return market_of(flood, **more).shoppers[-1].queued_steps


@pytest.mark.parametrize("beside_visitors", [None, 16])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_question_is_in_the_next_step(flood: str, beside_visitors: int | None) -> None:
    assert flooded(flood, beside_visitors=beside_visitors) == [0] * QUESTIONS


@pytest.mark.parametrize("flood", [name for name, sent in FLOODS.items() if sent["output"] > 2])
def test_the_step_that_it_waits_for_is_a_small_one(flood: str) -> None:
    """Beside the decodes: the question, and as much of others' prompts.

    Where the flood always has something running; else it is new itself, now and then.
    """
    prompt = 24
    steps = market_of(flood, prompt=prompt).runner.steps
    asked = [tokens for tokens in steps if tokens["quiet"] == prompt]
    assert len(asked) == QUESTIONS
    assert max(tokens.total() for tokens in asked) <= 2 * prompt + SEATS
    if "prompts" in flood:
        assert max(tokens.total() for tokens in steps) == BUDGET  # the control


@pytest.mark.parametrize("flood", [name for name in FLOODS if "long prompts" in name])
def test_beside_a_visitor_nobody_elses_prompt_is_computed(flood: str) -> None:
    """And the step that it waits for is small, since it may come."""
    prompt, least = 24, 16
    runner = market_of(flood, prompt=prompt, beside_visitors=least).runner
    asked = [number for number, step in enumerate(runner.steps) if step["quiet"] > 1]
    assert len(asked) == QUESTIONS
    assert max(runner.steps[number].total() for number in asked) <= prompt + SEATS
    assert max(runner.steps[number - 1].total() for number in asked[2:]) <= least + SEATS
    assert sum(step["flood0"] for step in runner.steps) > 10 * QUESTIONS * least


def test_a_flow_that_is_alone_gets_the_whole_first_step() -> None:
    many = Shopper("alone", [[]], suffix=24, backlog=10)
    market = Market([many], num_blocks=1000, max_batch_tokens=BUDGET, max_running=SEATS)
    market.run(1)
    assert market.runner.steps[0].total() == BUDGET


@pytest.mark.parametrize("beside_visitors", [None, 16])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_long_one_has_half_of_each_step_at_least(flood: str, beside_visitors: int | None) -> None:
    steps = 5
    waited = flooded(flood, prompt=steps * (BUDGET - SEATS), beside_visitors=beside_visitors)
    assert max(waited) < 2 * steps


@pytest.mark.parametrize("beside_visitors", [None, 16])
@pytest.mark.parametrize("flooders", [2, 3])
def test_several_floods_do_not_change_that(flooders: int, beside_visitors: int | None) -> None:
    waited = flooded("long prompts and answers", flooders=flooders, beside_visitors=beside_visitors)
    assert waited == [0] * QUESTIONS


@pytest.mark.parametrize("beside_visitors", [None, 16])
def test_nor_do_floods_that_hold_every_block(beside_visitors: int | None) -> None:
    """Room for seven of the flood's sequences: what one holds goes to the newcomer."""
    waited = flooded(
        "long prompts and answers", num_blocks=7 * 170, beside_visitors=beside_visitors
    )
    assert waited == [0] * QUESTIONS


@pytest.mark.parametrize("flood", ["long answers on every seat", "long prompts"])
def test_in_one_flow_with_the_flood_it_waits(flood: str) -> None:
    """The control: what is asked is really a flood."""
    assert min(flooded(flood, flow="all")[:1] or [200]) > 20
