"""Real models with recurrent layers or freed windows: cached answers equal uncached ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from tests.doubles.engine.drafting.scripted_drafting import ScriptedDrafting
from tests.engine.rigs.checkpoints import RECIPES, VOCAB_SIZE, Checkpoint, make_checkpoint
from tests.examples import in_the_zoo
from tests.seams.support.mix import COMMON, NAMESPACES, Alone, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIX = [
    Ask(i % 4, 32 + i % 8, (5, 6, 7), 12, NAMESPACES[i % 2], i if i % 3 else None)
    for i in range(12)
]
ROOMY = Bounds(num_blocks=64, block_size=16, max_batch_tokens=16, max_running=4)
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)


@pytest.fixture(
    scope="module", params=["qwen3.5", "granite-hybrid", "gpt-oss", *in_the_zoo("gemma3")]
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model_dir: Path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(RECIPES[request.param], model_dir)


@pytest.fixture(scope="module")
def alone(saved: Checkpoint) -> Alone:
    """Return a function that computes the answer of a request that runs alone."""
    return alone_on(saved.model_dir)


@pytest.mark.parametrize("graph_tokens", [64, *in_the_zoo(0)])
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    saved: Checkpoint, alone: Alone, graph_tokens: int
) -> None:
    """The pool is so small that sequences are preempted; chunks have 24 tokens."""
    bounds = Bounds(4, 16, 24, 4, overlap_scheduling=True, graph_tokens=graph_tokens)
    engine = RealEngine(str(saved.model_dir), bounds)
    run_mix(engine, MIX)
    for number, ask in enumerate(MIX):
        assert engine.tokens(str(number)) == alone(ask)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > 0
    engine.expect_nothing_left()


@pytest.mark.parametrize(("wrong", "graph_tokens"), [(0.3, 0), (1.0, 64), *in_the_zoo((0.0, 64))])
def test_drafts_change_no_answer(
    saved: Checkpoint, alone: Alone, *, wrong: float, graph_tokens: int
) -> None:
    """Drafts are perfect, random or adversarial, with chunks, preemptions and captured steps."""
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


@dataclass(frozen=True)
class Conversation:
    """An answer without drafts, the number of its steps, and the answer of the next turn."""

    answer: list[int]
    num_steps: int
    following: list[int]
    reused: int


def ask_on(engine: RealEngine, answer: list[int]) -> None:
    """Ask for the continuation of an answer."""
    prompt = [*COMMON, *answer, *COMMON[:9]]
    engine.submit("next", prompt, GREEDY, namespace=NAMESPACES[0])
    engine.run()


@pytest.fixture(scope="module")
def plain(saved: Checkpoint) -> Conversation:
    engine = RealEngine(str(saved.model_dir), ROOMY)
    engine.submit("a", COMMON, GREEDY, namespace=NAMESPACES[0])
    engine.run()
    answer, num_steps = engine.tokens("a"), len(engine.steps)
    ask_on(engine, answer)
    reused = engine.finished("next").reused.tokens
    return Conversation(answer, num_steps, engine.tokens("next"), reused)


@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_a_drafted_answer_ends_with_the_state_of_a_plain_one(
    saved: Checkpoint, plain: Conversation, wrong: float
) -> None:
    answer = plain.answer

    def follows(sequence: Sequence, most: int) -> list[int]:
        return answer[sequence.num_output :][:most]

    drafts = ScriptedDrafting(follows, VOCAB_SIZE, wrong, most=16)
    engine = RealEngine(
        str(saved.model_dir), replace(ROOMY, max_batch_tokens=40, max_running=40), drafting=drafts
    )
    engine.submit("a", COMMON, GREEDY, namespace=NAMESPACES[0])
    engine.run()
    assert engine.tokens("a") == answer
    assert len(engine.steps) < plain.num_steps / (3 if wrong == 0.0 else 1.5)
    drafts.often = 0.0
    ask_on(engine, answer)
    assert engine.tokens("next") == plain.following
    assert engine.finished("next").reused.tokens == plain.reused > 80
    engine.expect_nothing_left()


def test_a_conversation_goes_on_from_its_last_answer(
    saved: Checkpoint, plain: Conversation
) -> None:
    engine = RealEngine(str(saved.model_dir), ROOMY)
    engine.submit("first", COMMON, GREEDY, namespace=NAMESPACES[0])
    engine.run()
    answer = engine.tokens("first")
    assert saved.decoded(list(COMMON), answer).argmax(-1).tolist() == answer == plain.answer
    longer = [*COMMON, *answer, *COMMON[:9]]
    engine.submit("second", longer, GREEDY, namespace=NAMESPACES[0])
    engine.submit("elsewhere", longer, GREEDY, namespace=NAMESPACES[1])
    engine.run()
    given = engine.tokens("second")
    assert saved.decoded(longer, given).argmax(-1).tolist() == given
    assert engine.tokens("elsewhere") == given
    # All whole blocks are reused, except blocks with the last token, which no step has computed.
    assert engine.finished("second").reused.tokens == (len(COMMON) + len(answer) - 1) // 16 * 16
    assert engine.finished("elsewhere").reused.tokens == 0
    engine.expect_nothing_left()
