"""Agents' turns that are sent back: five turns of a recorded conversation, in each format of calls.

The model spells calls in another way than its template, and thinks before each. If generated turns
are stored, the next request finds their tokens in the cache; otherwise it misses them.
"""

from __future__ import annotations

from itertools import cycle, pairwise, product
from pathlib import Path

import pytest

from tests.gateway.support.agents import (
    AGENTS,
    FORGETFUL,
    RECORDED,
    SYSTEM,
    Agent,
    Stage,
    Used,
    staged,
)
from tests.gateway.support.tool_models import write_tool_model
from tests.gateway.turn_formats.formats import FORMATS

REUSED = 0.95
# Every third format, each with one dialect, since dialects differ before a format is used. `make
# test-zoo` tests all formats.
KEPT = set(zip([*FORMATS][::3], cycle(AGENTS), strict=False))
PAIRS = [
    pytest.param(*pair, marks=() if pair in KEPT else pytest.mark.zoo)
    for pair in product(FORMATS, AGENTS)
]


def reused(before: Used, after: Used) -> float:
    """Return the share of a turn's prompt and answer that the next turn found in the cache."""
    return after.cached / (before.prompt + before.answer)


def play_all(stage: Stage, agent: Agent) -> list[float]:
    stage.play(RECORDED)
    used = [agent.turn() for _ in RECORDED]
    assert [one.counted for one in used] == [one.prompt for one in used]
    return [reused(*pair) for pair in pairwise(used)]


def parts_of(stage: Stage, dialect: str, *ways: bool) -> dict[bool, list[float]]:
    """Return the shares that an agent's turns reuse, for agents that send reasoning back or drop
    it.

    The two runs begin with different words, so that neither finds the other's blocks.
    """
    found = {}
    with stage.client() as http:
        for keeps in ways:
            agent = AGENTS[dialect](http, keeps_reasoning=keeps, system=f"{keeps}: {SYSTEM}")
            found[keeps] = play_all(stage, agent)
    return found


@pytest.mark.parametrize(("format_name", "dialect"), PAIRS)
def test_a_following_turn_reuses_what_was_generated(
    format_name: str, dialect: str, tmp_path: Path
) -> None:
    model = write_tool_model(tmp_path / "model", format_name)
    with staged(model, tmp_path / "remembers") as stage:
        found = parts_of(stage, dialect, True, False)
        assert min(map(min, found.values())) >= REUSED, found
    with staged(model, tmp_path / "forgets", bounds=FORGETFUL) as stage:
        found = parts_of(stage, dialect, True)
        assert max(map(max, found.values())) < REUSED, f"the control: {found}"
