"""Train the handbook model from nothing: `python -m handbook.train --out DIR --minutes 8` on a GPU.

The clock decides: learning rate and curriculum follow the share of the minutes that has passed. The
best checkpoint by held-out accuracy is kept in the out directory. Knows no tensors.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tokenizers import Tokenizer

from handbook.card import write_card
from handbook.checkpoint import load_checkpoint, save_checkpoint
from handbook.decoder import Decoder
from handbook.evaluate import accuracy, answer_cases, draw_cases
from handbook.feed import Feed
from handbook.tokenizer import save_tokenizer, train_tokenizer
from handbook.trainer import Trainer, TrainingConfig

CHECK_SEED = 7
"""Not the seed that `handbook.evaluate` asks with: what picks the best must not also judge it."""


class Keeper:
    """Keeps the best checkpoint, judged as it will be shipped: read back from bfloat16."""

    def __init__(self, config: TrainingConfig, tokenizer: Tokenizer, out: Path) -> None:
        self._tokenizer = tokenizer
        self._out = out
        self._device = config.device
        self._cases = draw_cases(
            tokenizer, config.check_handbooks, config.check_tokens, seed=CHECK_SEED
        )
        self.best = 0.0

    def check(self, model: Decoder) -> float:
        """The accuracy of `model` in [0, 1]; it is written out unless a better one was before."""
        with tempfile.TemporaryDirectory() as trial:
            save_checkpoint(model, self._tokenizer, Path(trial))
            judged = load_checkpoint(Path(trial)).to(self._device)
        share = accuracy(answer_cases(judged, self._tokenizer, self._cases))
        if share >= self.best:
            self.best = share
            save_checkpoint(model, self._tokenizer, self._out)
        return share


def train(config: TrainingConfig, out: Path, console: Console) -> list[float]:
    """Train as `config` says, leave the best model in `out`; returns the answers' losses seen."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(config.tokenizer_texts, config.seed)
    save_tokenizer(tokenizer, out)
    shape = dataclasses.replace(config.shape, vocab_size=tokenizer.get_vocab_size())
    config = dataclasses.replace(config, shape=shape)
    feed = Feed(out, config.curriculum, config.tokens_per_step, config.seed)
    with feed.running(config.workers):
        trainer, keeper = Trainer(config), Keeper(config, tokenizer, out)
        losses = _run(config, trainer, keeper, feed, console)
    measured = f"{keeper.best:.1%} of {config.check_handbooks} held-out handbooks, while training."
    write_card(out, trainer.model, config.minutes, measured)
    return losses


def _run(
    config: TrainingConfig, trainer: Trainer, keeper: Keeper, feed: Feed, console: Console
) -> list[float]:
    start = checked = time.monotonic()
    losses: list[float] = []
    step = 0
    while (progress := (time.monotonic() - start) / (config.minutes * 60)) < 1:
        feed.advance(progress)
        loss = trainer.step(*trainer.batch(feed), progress)
        # Reading a loss waits for the device, so only now and then.
        if step % 20 == 0:
            losses.append(loss.item())
        step += 1
        if time.monotonic() - checked > config.check_every_seconds:
            checked = time.monotonic()
            _tell(console, progress, step, losses, keeper.check(trainer.model))
    _tell(console, 1.0, step, losses, keeper.check(trainer.model))
    return losses


def _tell(console: Console, progress: float, step: int, losses: list[float], right: float) -> None:
    recent = losses[-10:]
    loss = sum(recent) / len(recent)
    console.print(f"{progress:4.0%}  step {step}  answer loss {loss:.4f}  right {right:.1%}")


def main(
    out: Annotated[Path, typer.Option(help="Directory to write the model to.")],
    minutes: Annotated[float, typer.Option(help="Minutes to train.")] = 8.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for patience.")] = "cuda",
    workers: Annotated[int, typer.Option(help="Processes that write training text.")] = 14,
    seed: Annotated[int, typer.Option(help="Another seed, another model.")] = 0,
) -> None:
    """Train the handbook model and write it as a Hugging Face directory."""
    # Compiling pays on an accelerator; on a CPU it needs a C++ compiler that may not be there.
    compiled = device != "cpu"
    config = TrainingConfig(
        minutes=minutes, device=device, workers=workers, seed=seed, compiled=compiled
    )
    train(config, out, Console(highlight=False))


if __name__ == "__main__":
    typer.run(main)
