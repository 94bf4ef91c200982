"""The training of the handbook model: `python -m handbook.training.train --out DIR --minutes 8`.

Training begins with random weights, or with the model in DIR with `--from DIR`. Learning rate and
curriculum follow the share of the time that has passed. The output directory always has the best
checkpoint. A checkpoint's score is the lower of the two held-out accuracies, on handbooks and with
tools.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from handbook.training.checkpoint import (
    DecoderShape,
    load_checkpoint,
    new_decoder,
    shape_of,
    write_card,
)
from handbook.training.keeper import Accuracy, Checks, Keeper
from handbook.training.rows import CURRICULUM, WARM_CURRICULUM, Feed, Rows, TrainingStage
from handbook.training.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

BETAS = (0.9, 0.95)
COLD_RATE, WARM_RATE = 2e-3, 1e-3
"""Peaks of the learning rate, for a new model and for a trained model."""
LOWEST_SHARE = 0.02
FRESH_AT_LEAST = 8


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of the training. The defaults produced the shipped model on an H200."""

    minutes: float = 8.0
    shape: DecoderShape = field(default_factory=DecoderShape)
    curriculum: tuple[TrainingStage, ...] = CURRICULUM
    tokens_per_step: int = 98304
    learning_rate: float = COLD_RATE
    warmup: float = 0.02
    weight_decay: float = 0.05
    text_weight: float = 0.2
    workers: int = 14
    tokenizer_texts: int = 1500
    check_every_seconds: float = 40.0
    checks: Checks = field(default_factory=Checks)
    start: Path | None = None
    compiled: bool = True
    device: str = "cuda"
    seed: int = 0


class Optimizers:
    """The optimizers: Muon for the layers' matrices, AdamW for embedding and norms.

    Both share a learning rate.
    """

    def __init__(self, model: LlamaForCausalLM, config: TrainingConfig) -> None:
        layers = list(model.model.layers.parameters())
        norms = [p for p in layers if p.ndim == 1]
        rest = [*model.model.embed_tokens.parameters(), *model.model.norm.parameters(), *norms]
        self._peak = config.learning_rate
        self._all = (
            torch.optim.Muon(
                [p for p in layers if p.ndim == 2],
                lr=self._peak,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(rest, lr=self._peak, betas=BETAS, weight_decay=0.0),
        )

    def step(self, share: float) -> None:
        """Update the weights at `share` of the peak learning rate, and clear the gradients."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = self._peak * share
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad(set_to_none=True)


def learning_share(progress: float, warmup: float) -> float:
    """Return the share of the peak learning rate at `progress` in [0, 1]."""
    if progress < warmup:
        return progress / warmup
    rest = min(1.0, (progress - warmup) / (1 - warmup))
    return LOWEST_SHARE + (1 - LOWEST_SHARE) * 0.5 * (1 + math.cos(math.pi * rest))


def answer_loss(
    logits: Tensor, targets: Tensor, answers: Tensor, text_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the loss to minimise, and the loss of the answers, in nats per token.

    `logits` (rows, length, vocab); `targets` (rows, length) ids; `answers` (rows, length) bool.
    Other text counts `text_weight` times as much as answers. This text teaches the model to copy
    names before answers can.
    """
    each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    said = answers.flatten().float()
    of_answers = (each * said).sum() / said.sum().clamp(min=1)
    of_text = (each * (1 - said)).sum() / (1 - said).sum().clamp(min=1)
    return of_answers + text_weight * of_text, of_answers.detach()


class Trainer:
    """The model, its optimizers, and recent batches that may be repeated."""

    def __init__(self, config: TrainingConfig) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._rng = random.Random(config.seed)
        self.model = _decoder(config).to(config.device)
        self._optimizers = Optimizers(self.model, config)
        self._recent: collections.deque[tuple[Tensor, Tensor]] = collections.deque(maxlen=256)
        self._loss: Callable[..., tuple[Tensor, Tensor]] = answer_loss
        if config.compiled:
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
            self._loss = torch.compile(answer_loss, dynamic=False)

    def batch(self, feed: Feed) -> tuple[Tensor, Tensor]:
        """Return a new batch, or a recent batch again while the workers are behind."""
        few = len(self._recent) < FRESH_AT_LEAST
        rows = feed.next() if few else feed.next_if_ready()
        if rows is None:
            return self._recent[self._rng.randrange(len(self._recent))]
        self._recent.append(self.upload(rows))
        return self._recent[-1]

    def upload(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Copy ids (int64) and answer marks (bool) to the device, each (rows, length + 1)."""
        ids = torch.from_numpy(rows.ids.astype("int64")).to(self._config.device)
        return ids, torch.from_numpy(rows.answers).to(self._config.device)

    def step(self, ids: Tensor, answers: Tensor, progress: float) -> Tensor:
        """Update on `ids` (rows, length + 1). Return the answers' loss, still on the device."""
        # On most CPUs float32 is faster, since they emulate bfloat16 slowly.
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits = self.model(ids[:, :-1]).logits
        # A compiled loss would be recompiled for every new number, but not for a tensor.
        weight = torch.tensor(self._config.text_weight * (1 - progress), device=ids.device)
        loss, of_answers = self._loss(logits, ids[:, 1:], answers[:, 1:], weight)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizers.step(learning_share(progress, self._config.warmup))
        return of_answers


def _decoder(config: TrainingConfig) -> LlamaForCausalLM:
    if config.start is None:
        return new_decoder(config.shape)
    model = load_checkpoint(config.start)
    model.config.use_cache = False
    model.train()
    return model


def _keeper(config: TrainingConfig, tokenizer: Tokenizer, out: Path) -> Keeper:
    return Keeper(config.checks, config.shape, tokenizer, config.device, out)


def train(config: TrainingConfig, out: Path, console: Console) -> list[float]:
    """Train by `config`, keep the best model in `out`, and return the losses of answers."""
    out.mkdir(parents=True, exist_ok=True)
    if config.start is None:
        tokenizer = train_tokenizer(config.tokenizer_texts, config.seed)
        shape = dataclasses.replace(config.shape, vocab_size=tokenizer.get_vocab_size())
    else:
        tokenizer, shape = load_tokenizer(config.start), shape_of(config.start)
    save_tokenizer(tokenizer, out)
    config = dataclasses.replace(config, shape=shape)
    feed = Feed(out, config.curriculum, config.tokens_per_step, config.seed)
    with feed.running(config.workers):
        trainer, keeper = Trainer(config), _keeper(config, tokenizer, out)
        losses = _run(config, trainer, keeper, feed, console)
    assert keeper.best is not None
    write_card(out, trainer.model, shape, _made(config), keeper.best.table())
    return losses


def _made(config: TrainingConfig) -> str:
    where = torch.cuda.get_device_name() if config.device == "cuda" else config.device
    command = f"python -m handbook.training.train --out DIR --minutes {config.minutes:g}"
    if config.start is None:
        return f"`{command}` on one {where}"
    return (
        f"`{command} --from OLDER` on one {where}, where OLDER\n"
        "is the same model after 8.2 minutes from nothing on an H200, without tools"
    )


def _run(
    config: TrainingConfig, trainer: Trainer, keeper: Keeper, feed: Feed, console: Console
) -> list[float]:
    start = checked = time.monotonic()
    losses: list[float] = []
    step = 0
    while (progress := (time.monotonic() - start) / (config.minutes * 60)) < 1:
        feed.advance(progress)
        loss = trainer.step(*trainer.batch(feed), progress)
        # Reading a loss waits for the device, so losses are read seldom.
        if step % 20 == 0:
            losses.append(loss.item())
        step += 1
        if time.monotonic() - checked > config.check_every_seconds:
            checked = time.monotonic()
            _tell(console, progress, step, losses, keeper.check(trainer.model))
    _tell(console, 1.0, step, losses, keeper.check(trainer.model))
    return losses


def _tell(
    console: Console, progress: float, step: int, losses: list[float], right: Accuracy
) -> None:
    recent = losses[-10:]
    loss = sum(recent) / len(recent)
    console.print(f"{progress:4.0%}  step {step}  answer loss {loss:.4f}  right: {right.told()}")


def main(
    out: Annotated[Path, typer.Option(help="Directory to write the model to.")],
    minutes: Annotated[float, typer.Option(help="Minutes to train.")] = 8.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for patience.")] = "cuda",
    workers: Annotated[int, typer.Option(help="Processes that write training text.")] = 14,
    seed: Annotated[int, typer.Option(help="Another seed, another model.")] = 0,
    start: Annotated[
        Path | None, typer.Option("--from", help="Directory of a model to begin from.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help=f"Its peak; by default {COLD_RATE:g}, or {WARM_RATE:g} with --from."),
    ] = None,
) -> None:
    """Train the handbook model and write it as a Hugging Face directory."""
    # Compiling pays on an accelerator. On a CPU it needs a C++ compiler, which may be missing.
    compiled = device != "cpu"
    config = TrainingConfig(
        minutes=minutes,
        device=device,
        workers=workers,
        seed=seed,
        compiled=compiled,
        start=start,
        learning_rate=learning_rate or (WARM_RATE if start else COLD_RATE),
        curriculum=WARM_CURRICULUM if start else CURRICULUM,
    )
    train(config, out, Console(highlight=False))


if __name__ == "__main__":
    typer.run(main)
