"""With windows in only some layers, cached answers equal uncached ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.models.alternating_architecture import (
    SERVED,
    SERVED_WITHOUT_WINDOWS,
    WINDOW,
    make_alternating_checkpoint,
)
from tests.seams.support.mix import NAMESPACES, Alone, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

# Some prompts are shorter than a window, some longer. Shared prefixes end before and within a
# window.
MIX = [
    Ask(i % 4, 10 + 3 * i, (5, 6, 7), 12, NAMESPACES[i % 2], i if i % 3 else None)
    for i in range(11)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint; return its directory."""
    directory = tmp_path_factory.mktemp("alternating")
    make_alternating_checkpoint(directory)
    return directory


@pytest.fixture(scope="module")
def alone(made: Path) -> Alone:
    """Return a function that computes the answer of a request that runs alone."""
    return alone_on(made, SERVED)


@pytest.mark.parametrize("graph_tokens", [0, 64])
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    made: Path, alone: Alone, graph_tokens: int
) -> None:
    bounds = Bounds(4, 16, 24, 4, overlap_scheduling=True, graph_tokens=graph_tokens)
    engine = RealEngine(str(made), bounds, served=SERVED)
    run_mix(engine, MIX)
    for number, ask in enumerate(MIX):
        assert engine.tokens(str(number)) == alone(ask)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > WINDOW
    engine.expect_nothing_left()


def test_windows_show(made: Path, alone: Alone) -> None:
    """Positive control: without windows, answers to longer prompts differ."""
    without = alone_on(made, SERVED_WITHOUT_WINDOWS)
    assert len(MIX[0].prompt) + 8 < WINDOW < len(MIX[-1].prompt)
    assert alone(MIX[0])[:8] == without(MIX[0])[:8]
    assert alone(MIX[-1]) != without(MIX[-1])
