"""The model under training: its settings, its loss, its optimizers, one step.

Knows nothing of clocks, files or how rows come to be; it is told how far the training has come.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from handbook.decoder import Decoder, Shape
from handbook.feed import CURRICULUM, Feed, Stage
from handbook.rows import Rows

BETAS = (0.9, 0.95)
LOWEST_SHARE = 0.02
FRESH_AT_LEAST = 8


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how to train; the defaults are those of the shipped model on one H200."""

    minutes: float = 8.0
    shape: Shape = field(default_factory=Shape)
    curriculum: tuple[Stage, ...] = CURRICULUM
    tokens_per_step: int = 98304
    learning_rate: float = 2e-3
    warmup: float = 0.02
    weight_decay: float = 0.05
    text_weight: float = 0.2
    workers: int = 14
    tokenizer_texts: int = 1500
    check_every_seconds: float = 40.0
    check_handbooks: int = 800
    check_tokens: tuple[int, int] = (500, 2000)
    compiled: bool = True
    device: str = "cuda"
    seed: int = 0


class Optimizers:
    """Muon for the matrices of the layers, AdamW for embedding and norms; one learning rate."""

    def __init__(self, model: Decoder, config: TrainingConfig) -> None:
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
        """One update at `share` of the peak learning rate; clears the gradients."""
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = self._peak * share
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad(set_to_none=True)


def learning_share(progress: float, warmup: float) -> float:
    """The share of the peak rate at `progress` in [0, 1]: a linear rise, then half a cosine."""
    if progress < warmup:
        return progress / warmup
    rest = min(1.0, (progress - warmup) / (1 - warmup))
    return LOWEST_SHARE + (1 - LOWEST_SHARE) * 0.5 * (1 + math.cos(math.pi * rest))


def answer_loss(
    logits: Tensor, targets: Tensor, answers: Tensor, text_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and the answers' part of it, in nats a token.

    `logits` (rows, length, vocab); `targets` and `answers` (rows, length), ids and bool. Text that
    is no answer counts `text_weight` as much: it teaches to copy names before answers can.
    """
    each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    said = answers.flatten().float()
    of_answers = (each * said).sum() / said.sum().clamp(min=1)
    of_text = (each * (1 - said)).sum() / (1 - said).sum().clamp(min=1)
    return of_answers + text_weight * of_text, of_answers.detach()


class Trainer:
    """The model, its optimizers, and the recent batches it may see again."""

    def __init__(self, config: TrainingConfig) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._rng = random.Random(config.seed)
        self.model = Decoder(config.shape).to(config.device)
        self._optimizers = Optimizers(self.model, config)
        self._recent: collections.deque[tuple[Tensor, Tensor]] = collections.deque(maxlen=256)
        self._loss: Callable[..., tuple[Tensor, Tensor]] = answer_loss
        if config.compiled:
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
            self._loss = torch.compile(answer_loss, dynamic=False)

    def batch(self, feed: Feed) -> tuple[Tensor, Tensor]:
        """A fresh batch; where the workers are behind, a recent one again."""
        few = len(self._recent) < FRESH_AT_LEAST
        rows = feed.next() if few else feed.next_if_ready()
        if rows is None:
            return self._recent[self._rng.randrange(len(self._recent))]
        self._recent.append(self.upload(rows))
        return self._recent[-1]

    def upload(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Ids (int64) and answer marks (bool) on the device, each (rows, length + 1)."""
        ids = torch.from_numpy(rows.ids.astype("int64")).to(self._config.device)
        return ids, torch.from_numpy(rows.answers).to(self._config.device)

    def step(self, ids: Tensor, answers: Tensor, progress: float) -> Tensor:
        """One update on `ids` (rows, length + 1); the answers' loss, still on the device."""
        # Most CPUs emulate bfloat16 slowly; there, float32 is the quick way.
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            logits = self.model(ids[:, :-1])
        # A tensor, because a compiled loss would be compiled again for every new number.
        weight = torch.tensor(self._config.text_weight * (1 - progress), device=ids.device)
        loss, of_answers = self._loss(logits, ids[:, 1:], answers[:, 1:], weight)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizers.step(learning_share(progress, self._config.warmup))
        return of_answers
