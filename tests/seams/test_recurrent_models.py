"""Real models with recurrent layers, or freed windows, through the core: cached = uncached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from tests.doubles.engine.scripted_drafting import ScriptedDrafting
from tests.engine.rigs.checkpoints import RECIPES, VOCAB_SIZE, Checkpoint, make_checkpoint
from tests.seams.support.mix import COMMON, NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIX = [
    Ask(i % 4, 32 + i % 8, (5, 6, 7), 12, NAMESPACES[i % 2], i if i % 3 else None)
    for i in range(12)
]
ROOMY = Bounds(num_blocks=64, block_size=16, max_batch_tokens=16, max_running=4)
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=["qwen3.5", "granite-hybrid", "gpt-oss", "gemma3"])
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


@pytest.mark.parametrize(("wrong", "graph_tokens"), [(0.0, 64), (0.3, 0), (1.0, 64)])
def test_drafts_change_no_answer(saved: Checkpoint, *, wrong: float, graph_tokens: int) -> None:
    """Perfect, random and adversarial drafts, with chunks, preemptions and captured steps."""
    alone = alone_on(saved.model_dir)
    mix = [replace(ask, max_tokens=36) for ask in MIX[:6]]
    told = {str(number): alone(ask) for number, ask in enumerate(mix)}

    def follows(sequence: Sequence, most: int) -> list[int]:
        return told[sequence.request_id][sequence.num_output :][:most]

    drafts = ScriptedDrafting(follows, VOCAB_SIZE, wrong, most=7, often=0.8)
    bounds = Bounds(
        9, 16, 24, 16, overlap_scheduling=graph_tokens > 0, graph_tokens=graph_tokens, drafts=True
    )
    engine = RealEngine(str(saved.model_dir), bounds, drafting=drafts)
    run_mix(engine, mix)
    assert {name: engine.tokens(name) for name in told} == told
    stats = engine.core.stats()
    counted = stats.drafts["own"]
    assert stats.preemptions > 0
    assert counted.drafted_tokens > 8
    assert (counted.accepted_tokens > 0) is (wrong < 1.0)
    engine.expect_nothing_left()


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_a_drafted_answer_ends_with_the_state_of_a_plain_one(
    saved: Checkpoint, wrong: float
) -> None:
    plain = RealEngine(str(saved.model_dir), ROOMY)
    plain.submit("a", COMMON, GREEDY, namespace=NAMESPACES[0])
    plain.run()
    answer = plain.tokens("a")

    def follows(sequence: Sequence, most: int) -> list[int]:
        return answer[sequence.num_output :][:most]

    drafts = ScriptedDrafting(follows, VOCAB_SIZE, wrong, most=16)
    engine = RealEngine(
        str(saved.model_dir), replace(ROOMY, max_batch_tokens=40, max_running=40), drafting=drafts
    )
    engine.submit("a", COMMON, GREEDY, namespace=NAMESPACES[0])
    engine.run()
    assert engine.tokens("a") == answer
    assert len(engine.steps) < len(plain.steps) / (3 if wrong == 0.0 else 1.5)
    drafts.often = 0.0
    for one in (plain, engine):
        one.submit("next", [*COMMON, *answer, *COMMON[:9]], GREEDY, namespace=NAMESPACES[0])
        one.run()
    assert engine.tokens("next") == plain.tokens("next")
    assert engine.finished("next").reused.tokens == plain.finished("next").reused.tokens > 80
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
