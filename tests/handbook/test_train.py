from __future__ import annotations

import dataclasses
import io
import random
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer

from handbook.training.checkpoint import load_checkpoint
from handbook.training.keeper import Checks
from handbook.training.names import NameSource, Split
from handbook.training.rows import TrainingStage, write_rows
from handbook.training.tokenizer import load_tokenizer
from handbook.training.train import Trainer, TrainingConfig, answer_loss, learning_share, train
from tests.handbook.shapes import TINY

SMOKE = TrainingConfig(
    minutes=0.01,
    shape=TINY,
    curriculum=(TrainingStage(0.0, (64,)),),
    tokens_per_step=256,
    workers=1,
    tokenizer_texts=20,
    checks=Checks(count=4, tokens=(20, 100), tool_tokens=(80, 400), tool_turns=1),
    compiled=False,
    device="cpu",
)


def test_steps_on_one_batch_lower_its_loss(shipped_tokenizer: Tokenizer) -> None:
    trainer = Trainer(SMOKE)
    source = NameSource(random.Random(0), Split.TRAIN)
    ids, answers = trainer.upload(write_rows(source, shipped_tokenizer, 4, 64))
    losses = [trainer.step(ids, answers, progress=0.1).item() for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]


def test_training_leaves_a_whole_model_directory(tmp_path: Path) -> None:
    told = io.StringIO()
    losses = train(SMOKE, tmp_path / "out", Console(file=told))
    assert losses
    assert "right" in told.getvalue()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text()
    assert "`python -m handbook.training.train --out DIR --minutes 0.01` on one cpu" in card
    assert "| tools, all | " in card
    model = load_checkpoint(tmp_path / "out")
    assert model.config.vocab_size == load_tokenizer(tmp_path / "out").get_vocab_size()


def test_training_may_begin_from_a_model_and_leaves_it_alone(tmp_path: Path) -> None:
    train(SMOKE, tmp_path / "first", Console(file=io.StringIO()))
    before = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    # Even a very low rate would change a weight near zero.
    config = dataclasses.replace(SMOKE, start=tmp_path / "first", learning_rate=0.0)
    train(config, tmp_path / "second", Console(file=io.StringIO()))
    assert {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()} == before
    assert "--from OLDER" in (tmp_path / "second" / "README.md").read_text()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "second" / name).read_bytes() == before[name]


def test_learning_rises_then_falls_to_nearly_nothing() -> None:
    shares = [learning_share(progress, 0.1) for progress in (0.0, 0.05, 0.1, 0.5, 1.0)]
    assert shares[:3] == [0.0, 0.5, 1.0]
    assert 0.5 < shares[3] < 1.0
    assert shares[4] == pytest.approx(0.02)


def test_the_loss_counts_answers_in_full_and_text_as_weighed() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    targets, answers = torch.tensor([[0, 0]]), torch.tensor([[True, False]])
    right, even = 0.126928, 0.693147
    whole, of_answers = answer_loss(logits, targets, answers, torch.tensor(0.5))
    assert of_answers.item() == pytest.approx(right, abs=1e-5)
    assert whole.item() == pytest.approx(right + 0.5 * even, abs=1e-5)
