"""A prefix is fetched with the recurrent state or window at its end, or it is not fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from prefix_cache.namespace import NamespacePath
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.seams.exchange.pair import BOUNDS, GREEDY, PROMPT, SIZE, WHOLE, A, B, Pair, pair_of

FEW_BLOCKS = replace(BOUNDS, host_blocks=600)
STATE_AT = 64  # number of tokens of a step, at whose end a state is kept
MODELS = ["qwen3.5", "granite-hybrid", "gpt-oss"]


@pytest.fixture(scope="module", params=MODELS)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(RECIPES[request.param], tmp_path_factory.mktemp(request.param)).model_dir


def freed(config: EngineConfig) -> EngineConfig:
    """Return the config in which KV outside windows is freed, if the model has sliding windows."""
    return config.changed(windows="freed" if "gpt-oss" in config.model.model_dir else "auto")


@pytest.fixture(scope="module")
def kept(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    where = str(tmp_path_factory.mktemp("exchange") / "x.sock")
    with pair_of(model_dir, where, bounds=FEW_BLOCKS, over=freed) as pair:
        yield pair


@pytest.fixture
def pair(kept: Pair) -> Iterator[Pair]:
    yield kept
    kept.forget()


def test_what_was_fetched_goes_on_from_its_state(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    assert pair.fetch("again", PROMPT, A) == computed
    assert pair.here.finished("again").reused.fetched == WHOLE * SIZE
    pair.here.submit("own", PROMPT, GREEDY, namespace=A)
    pair.here.run()
    assert pair.here.tokens("own") == computed
    assert pair.here.finished("own").reused.tiers.device == WHOLE * SIZE, "the tree has the state"


def test_a_longer_prompt_is_fetched_as_far_as_a_state_was_kept(pair: Pair) -> None:
    """Recurrent states are kept at the end of the first step, rings at the last block's end."""
    pair.compute("first", PROMPT[: 7 * SIZE + 3], A)
    expected = pair.compute("alone", PROMPT, B)
    assert pair.fetch("again", PROMPT, A) == expected
    found = pair.there.cache.tree.match(NamespacePath.single(A), np.array(PROMPT, np.int32)).at
    assert STATE_AT <= found.num_blocks * SIZE <= 7 * SIZE
    assert pair.here.finished("again").reused.fetched == found.num_blocks * SIZE


def test_blocks_without_a_state_stay_where_they_are(pair: Pair) -> None:
    """The prompts share three blocks, and the state is after the fourth."""
    pair.compute("first", PROMPT[: 7 * SIZE + 3], A)
    other = (*PROMPT[: STATE_AT - SIZE], *range(5, 40))
    expected = pair.compute("alone", other, B)
    assert pair.fetch("again", other, A) == expected
    assert pair.here.finished("again").reused.fetched == 0


def test_another_tenants_state_is_not_found(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    assert pair.fetch("other", PROMPT, B) == computed
    assert pair.here.finished("other").reused.tokens == 0
    pair.fetch("own", PROMPT, A)  # positive control: the same tenant's state is found
    assert pair.here.finished("own").reused.fetched == WHOLE * SIZE


def test_what_is_computed_there_comes_when_it_is_done(pair: Pair) -> None:
    pair.there.submit("first", PROMPT, GREEDY, namespace=A)
    pair.here.submit("first~2", PROMPT, GREEDY, namespace=A, source=pair.source("first"))
    pair.until(lambda: pair.here.core.is_idle and pair.there.core.is_idle)
    assert pair.here.tokens("first~2") == pair.there.tokens("first")
    assert pair.here.finished("first~2").reused.fetched == WHOLE * SIZE


def test_a_state_below_the_device_is_loaded_and_sent(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    for number in range(30):
        pair.compute(f"other {number}", tuple(range(5 + number, 45 + number)) * 3, B)
    assert pair.there.cache.checkpoints.counts.copied_down > 0
    assert pair.fetch("again", PROMPT, A) == computed
    assert pair.here.finished("again").reused.fetched == WHOLE * SIZE
