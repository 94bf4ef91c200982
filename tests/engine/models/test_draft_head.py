"""A checkpoint's draft head, compared with one written from its definition."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.execution.further_drafts import FURTHER
from engine.link.messages import SamplingParams
from engine.step import DECODE, Row, Step
from prefix_cache.namespace import Namespace
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.draft_heads import HeadAlone, Truth, save_with_head
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt
from tests.engine.rigs.ranks import ThreadRanks
from tests.examples import in_the_zoo
from tests.seams.support.real_engine import Bounds, RealEngine, as_it_is

NAMESPACE = Namespace(b"n" * 16)
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def truth(checkpoint: MakeCheckpoint) -> Truth:
    return Truth(checkpoint("qwen3.5"))


@pytest.fixture(scope="module")
def model_dir(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint with a draft head."""
    return save_with_head(truth, tmp_path_factory.mktemp("with head"), truth.tensors())


@pytest.fixture(scope="module")
def plain_dir(truth: Truth, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the same checkpoint without a draft head."""
    return save_with_head(truth, tmp_path_factory.mktemp("plain"), {})


def test_its_logits_are_those_of_its_definition(truth: Truth, model_dir: Path) -> None:
    driven, prompt = HandDriven(build_runner(model_dir)), random_prompt(50)
    runner = driven.runner
    decoder, told = runner.decoder, truth.logits(prompt)
    sequence = driven.add(prompt)
    got = []
    # a prompt, then one decoded token, then another prompt
    for first, last in ((0, 20), (20, 21), (21, 49)):
        batch = driven.batch([data_row(sequence, first, last - first)])
        states = runner.states_of(batch)
        pool = runner.pool.layers
        hidden = decoder.hidden(batch.token_ids, batch.layout, pool, None, states)
        following = torch.tensor(prompt[first + 1 : last + 1])
        outputs = torch.arange(last - first)
        drafted = decoder.draft_hidden(hidden, following, batch.layout, pool, outputs)
        got.append(decoder.logits_of(drafted))
    assert (torch.cat(got) - told).abs().max() < 1e-4
    assert told.std() > 0.5, "the control: logits that spread"


@pytest.mark.parametrize(
    ("graph_tokens", "overlaps", "ranks", "stages"),
    [
        *((64, True, 1, 1), (0, True, 2, 1), (0, False, 1, 2)),
        *in_the_zoo((0, False, 1, 1), (0, False, 2, 2)),
    ],
)
def test_its_drafts_are_those_of_its_definition_and_change_no_answer(
    truth: Truth,
    model_dir: Path,
    plain_dir: Path,
    *,
    graph_tokens: int,
    overlaps: bool,
    ranks: int,
    stages: int,
) -> None:
    """Compare the head's drafts with its definition, also with a cached prefix, two ranks, or two
    stages.

    A cached prefix includes the head's KV.
    """
    bounds = Bounds(64, 16, 24, 8, overlap_scheduling=overlaps, graph_tokens=graph_tokens)
    prompt, drafting = random_prompt(45), HeadAlone()
    plain = RealEngine(str(plain_dir), bounds)
    engine = RealEngine(
        str(model_dir), replace(bounds, ranks=ranks, stages=stages), drafting=drafting
    )
    for name in "ab":
        drafting.drafted.clear()
        for one in (plain, engine):
            one.submit(name, prompt, GREEDY, namespace=NAMESPACE)
            one.run()
        answer = engine.tokens(name)
        assert answer == plain.tokens(name)
        assert engine.finished(name).reused.tokens == plain.finished(name).reused.tokens
        assert len(drafting.drafted) > 10
        for known, token_ids in list(drafting.drafted.items())[::3]:
            expected = truth.drafts([*prompt, *answer][:known], len(token_ids))
            assert list(token_ids) == expected, known
        assert max(map(len, drafting.drafted.values())) == 1 + FURTHER
        prompt = [*prompt, *answer, 7, 9]
    assert engine.finished("b").reused.tokens > 64
    said = [engine.finished(name).drafts["mtp"] for name in "ab"]
    drafted, accepted = (sum(counts) for counts in zip(*said, strict=True))
    assert drafted == engine.core.stats().drafts["mtp"].drafted_tokens
    assert drafted - 10 > accepted > 10, (drafted, accepted)
    engine.expect_nothing_left()
    engine.close()


def test_a_server_drafts_from_it_as_long_as_that_pays(model_dir: Path, plain_dir: Path) -> None:
    bounds = Bounds(64, 16, 24, 8, overlap_scheduling=True, drafts=True)
    engine, plain = (RealEngine(str(one), bounds) for one in (model_dir, plain_dir))
    for one in (engine, plain):
        one.submit("a", random_prompt(45), GREEDY, namespace=NAMESPACE)
        one.run()
    assert engine.tokens("a") == plain.tokens("a")
    assert engine.core.stats().drafts["mtp"].drafted_tokens > 0
    assert "mtp" not in plain.core.stats().drafts


def test_it_is_left_in_the_files_where_nothing_is_drafted(model_dir: Path) -> None:
    def without(config: EngineConfig) -> EngineConfig:
        return structs.replace(config, steps=structs.replace(config.steps, drafts="off"))

    layers = [
        RealEngine(str(model_dir), Bounds(64, 16, 24, 8), over=over).pool.layout.num_layers
        for over in (as_it_is, without)
    ]
    assert layers == [3, 2]


def test_ranks_leave_out_a_sample_together(model_dir: Path) -> None:
    """Leave out a sample on both ranks.

    The head also writes keys in such a step, and its ranks sum their outputs.
    """
    bounds = replace(Bounds(64, 16, 24, 8), ranks=2)
    with closing(RealEngine(str(model_dir), bounds)) as engine:
        assert isinstance(engine.ranks, ThreadRanks)
        row = Row(1, 0, DECODE, 0, 1, True, False, bytes(4), 0, bytes(4))
        assert engine.runner.launch_forward(Step((row,))).skip().collect() == []
        engine.ranks.catch_up()
