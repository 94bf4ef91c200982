"""Real models with recurrent layers through the engine's core: cached equals uncached."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint
from tests.seams.support.mix import COMMON, NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIX = [
    Ask(i % 4, 32 + i % 8, (5, 6, 7), 12, NAMESPACES[i % 2], i if i % 3 else None)
    for i in range(12)
]
ROOMY = Bounds(num_blocks=64, block_size=16, max_batch_tokens=16, max_running=4)
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=["qwen3.5", "granite-hybrid"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model_dir: Path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(RECIPES[request.param], model_dir)


@pytest.mark.parametrize("graph_tokens", [0, 64])
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    saved: Checkpoint, graph_tokens: int
) -> None:
    """Under a pool so small that sequences are preempted, in chunks of 24 tokens."""
    alone = alone_on(saved.model_dir)
    bounds = Bounds(4, 16, 24, 4, overlap_scheduling=True, graph_tokens=graph_tokens)
    engine = RealEngine(str(saved.model_dir), bounds)
    run_mix(engine, MIX)
    for number, ask in enumerate(MIX):
        assert engine.tokens(str(number)) == alone(ask)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > 0
    engine.expect_nothing_left()


def test_a_conversation_goes_on_from_its_last_answer(saved: Checkpoint) -> None:
    engine = RealEngine(str(saved.model_dir), ROOMY)
    engine.submit("first", COMMON, GREEDY, namespace=NAMESPACES[0])
    engine.run()
    answer = engine.tokens("first")
    assert saved.decoded(list(COMMON), answer).argmax(-1).tolist() == answer
    longer = [*COMMON, *answer, *COMMON[:9]]
    engine.submit("second", longer, GREEDY, namespace=NAMESPACES[0])
    engine.submit("elsewhere", longer, GREEDY, namespace=NAMESPACES[1])
    engine.run()
    given = engine.tokens("second")
    assert saved.decoded(longer, given).argmax(-1).tolist() == given
    assert engine.tokens("elsewhere") == given
    # All whole blocks but those of the last tokens, which no step has computed.
    assert engine.finished("second").reused.tokens == (len(COMMON) + len(answer) - 1) // 16 * 16
    assert engine.finished("elsewhere").reused.tokens == 0
    engine.expect_nothing_left()
