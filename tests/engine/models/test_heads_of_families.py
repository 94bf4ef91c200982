"""Draft heads of other families, compared with `transformers`.

In GLM-4.5, DeepSeek V3 and GLM-4.7-Flash the head is one more layer. Qwen3-Next's head has
Qwen3.5's form. Nemotron 3's head has two blocks. MiMo is Qwen2 with a head whose projection reads
the hidden state first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from engine.link.messages import SamplingParams
from engine.offload.placement import GIB
from engine.startup.decoder import weight_sizes
from engine.startup.metadata import read_metadata
from tests.doubles.constraints import Script
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import VOCAB_SIZE, Recipe, make_checkpoint
from tests.engine.rigs.files.draft_heads import HeadAlone, Truth, save_with_head
from tests.engine.rigs.hand_driven import random_prompt
from tests.seams.support.mix import NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine, as_it_is

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
PROMPT = random_prompt(45)
# For some families' engines, the number of ranks in each stage and the number of stages.
SHAPES = {"mimo": (2, 1), "glm4-moe": (1, 2), "deepseek-v3": (1, 2)}
SEEDS = None, None, None, 3


def without_drafts(config: EngineConfig) -> EngineConfig:
    """Disable drafts in the config; the engine then does not load the head."""
    return structs.replace(config, steps=structs.replace(config.steps, drafts="off"))


def checkpoints(truth: Truth, directory: Path) -> tuple[Path, Path]:
    """Make a checkpoint of a decoder with its head, and one of the decoder alone."""
    made = directory / "head", directory / "plain"
    for place, tensors in zip(made, (truth.tensors(), {}), strict=True):
        place.mkdir()
        save_with_head(truth, place, tensors)
    return made


def truth_of(name: str, checkpoint: MakeCheckpoint, directory: Path) -> Truth:
    """Return the family's reference. MiMo's decoder is Qwen2's, with a separate output table."""
    own = make_checkpoint(Recipe("Qwen2"), directory / name) if name == "mimo" else None
    return Truth(own or checkpoint(name))


@pytest.mark.parametrize(
    "name", ["glm4-moe", "deepseek-v3", "glm4-moe-lite", "qwen3-next", "nemotron-3", "mimo"]
)
def test_its_drafts_are_those_of_its_definition_and_change_no_answer(
    name: str, checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    truth = truth_of(name, checkpoint, tmp_path)
    ranks, stages = SHAPES.get(name, (1, 1))
    bounds = replace(Bounds(64, 16, 24, 8), ranks=ranks, stages=stages)
    drafting = HeadAlone()
    with_head, _ = checkpoints(truth, tmp_path)
    plain = RealEngine(str(with_head), bounds, over=without_drafts)
    engine = RealEngine(str(with_head), bounds, drafting=drafting)
    for one in (plain, engine):
        with closing(one):
            one.submit("a", PROMPT, GREEDY, namespace=NAMESPACES[0])
            one.run()
    answer = engine.tokens("a")
    assert answer == plain.tokens("a")
    for known, token_ids in list(drafting.drafted.items())[::3]:
        expected = truth.drafts([*PROMPT, *answer][:known], len(token_ids))
        assert list(token_ids) == expected, known
    assert engine.finished("a").drafts["mtp"][1] > 0
    assert plain.pool.layout.num_layers == engine.pool.layout.num_layers - 1


def layers_in_host_memory(config: EngineConfig) -> EngineConfig:
    """Keep the weights of as many layers as possible in host memory."""
    metadata = read_metadata(config)
    total = sum(weight_sizes(metadata.model, metadata.dtype).layers)
    model = structs.replace(config.model, cpu_offload_gb=0.9 * total / GIB)
    return structs.replace(config, model=model)


@pytest.mark.parametrize("over", [as_it_is, layers_in_host_memory])
def test_its_keys_return_from_the_host(
    over: Callable[[EngineConfig], EngineConfig], checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """Draft as defined after a prefix was restored from host memory, also with offloaded layers."""
    truth = Truth(checkpoint("glm4-moe"))
    with_head, without = checkpoints(truth, tmp_path)
    bounds, drafting = Bounds(12, 16, 24, 8, host_blocks=64), HeadAlone()
    prompt = PROMPT
    with closing(RealEngine(str(with_head), bounds, over=over, drafting=drafting)) as engine:
        assert isinstance(engine.runner, ModelRunner)
        assert (engine.runner.decoder.prefetch is not None) is (over is layers_in_host_memory)
        for name in ("a", "other", "again"):
            drafting.drafted.clear()
            asked = random_prompt(150, seed=9) if name == "other" else prompt
            engine.submit(name, asked, GREEDY, namespace=NAMESPACES[0], loads="always")
            engine.run()
            prompt = [*PROMPT, *engine.tokens("a"), 7, 9]
        answer = engine.tokens("again")
        assert engine.finished("again").reused.tiers.host >= 64
        assert engine.finished("again").drafts["mtp"][1] > 0
    for known, token_ids in drafting.drafted.items():
        assert list(token_ids) == truth.drafts([*prompt, *answer][:known], len(token_ids)), known
    with closing(RealEngine(str(without), bounds)) as plain:
        plain.submit("again", prompt, GREEDY, namespace=NAMESPACES[0])
        plain.run()
        assert plain.tokens("again") == answer


@pytest.mark.parametrize("name", ["qwen3.5", "glm4-moe-lite"])
def test_pressure_changes_no_answer(name: str, checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Preempt chunked requests that share prefixes, also with seeded drafts; answers stay the
    same.
    """
    with_head, without = checkpoints(Truth(checkpoint(name)), tmp_path)
    alone = alone_on(without)
    pressed = Bounds(6, 16, 24, 8, host_blocks=256, overlap_scheduling=True)
    mix = [Ask(i % 3, 16 + i, (5, 6, 7), 12, NAMESPACES[i % 2], SEEDS[i % 4]) for i in range(8)]
    with closing(RealEngine(str(with_head), pressed, drafting=HeadAlone())) as engine:
        run_mix(engine, mix)
        assert [engine.tokens(str(n)) for n in range(8)] == [alone(ask) for ask in mix]
        stats = engine.core.stats()
        assert stats.preemptions > 0
        assert stats.drafts["mtp"].accepted_tokens > 0
        engine.expect_nothing_left()


def test_a_constraint_holds_for_drafted_tokens(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """Apply masks to drafts of the head, which itself ignores constraints."""
    answers = list[list[int]]()
    for model_dir in checkpoints(Truth(checkpoint("glm4-moe")), tmp_path):
        drafting, bounds = HeadAlone(), Bounds(64, 16, 24, 8)
        engine = RealEngine(str(model_dir), bounds, constraint_of=half_of_all, drafting=drafting)
        with closing(engine):
            engine.submit("a", PROMPT, GREEDY, namespace=NAMESPACES[0])
            engine.run()
        answers.append(engine.tokens("a"))
        drafted = sum(map(len, drafting.drafted.values()))
        assert bool(drafted) is (model_dir.name == "head")
    assert answers[0] == answers[1]


def half_of_all(sampling: SamplingParams, tenant: str) -> Script:
    """Return a constraint that alternates between two halves of the vocabulary."""
    del sampling, tenant
    halves = range(VOCAB_SIZE // 2), range(VOCAB_SIZE // 2, VOCAB_SIZE)
    return Script([*halves] * GREEDY.max_tokens, VOCAB_SIZE)
