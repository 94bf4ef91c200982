"""Two engines of two ranks each: what one fetches from the other, each rank has its slices of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.tier_mover import block_bytes_of
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import BOUNDS, PROMPT, SIZE, WHOLE, A, B, Pair, pair_of

TWO = replace(BOUNDS, ranks=2)
STAGES = replace(BOUNDS, stages=2)


@pytest.fixture(scope="module", params=[TWO, STAGES], ids=["layers divided", "stages"])
def kept(
    request: pytest.FixtureRequest,
    checkpoint: Checkpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    where = str(tmp_path_factory.mktemp("exchange") / "x.sock")
    with pair_of(checkpoint.model_dir, where, bounds=request.param) as pair:
        yield pair


@pytest.fixture
def pair(kept: Pair) -> Iterator[Pair]:
    """Two engines with empty caches, and afterwards none that holds a block."""
    yield kept
    kept.forget()


def test_what_was_fetched_gives_the_tokens_of_what_was_computed(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    assert pair.fetch("again", PROMPT, A) == computed
    reused = pair.here.finished("again").reused
    assert (reused.fetched, reused.tokens) == (WHOLE * SIZE, WHOLE * SIZE)
