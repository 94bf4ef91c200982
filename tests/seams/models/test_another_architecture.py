"""A model with layers of different kinds in the engine: cached answers equal uncached ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.models.odd_architecture import SERVED, make_odd_checkpoint, truth
from tests.seams.support.mix import NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIX = [
    Ask(i % 4, 16 + i, (5, 6, 7), 12, NAMESPACES[i % 2], i if i % 3 else None) for i in range(12)
]


@pytest.mark.parametrize("graph_tokens", [0, 64])
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    tmp_path: Path, graph_tokens: int
) -> None:
    weights = make_odd_checkpoint(tmp_path)
    alone = alone_on(tmp_path, SERVED)
    bounds = Bounds(4, 16, 24, 4, overlap_scheduling=True, graph_tokens=graph_tokens)
    engine = RealEngine(str(tmp_path), bounds, served=SERVED)
    run_mix(engine, MIX)
    for number, ask in enumerate(MIX):
        assert engine.tokens(str(number)) == alone(ask)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > 0
    assert alone(MIX[0])[0] == int(truth(weights, list(MIX[0].prompt))[-1].argmax())
    engine.expect_nothing_left()
