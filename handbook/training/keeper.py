"""The keeper of a training run's best checkpoint, by accuracy on held-out cases.

The files of the output directory are complete at any time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from handbook.training.checkpoint import DecoderShape, load_checkpoint, save_checkpoint
from handbook.training.evaluate import accuracy, answer_cases, by_kind, draw_cases, draw_tool_cases

CHECK_SEED = 7
"""Differs from the seed of `evaluate`, since cases that choose a checkpoint must not judge it."""


@dataclass(frozen=True)
class Checks:
    """The cases for a checkpoint: `count` handbooks, and `count` chats with tools."""

    count: int = 800
    tokens: tuple[int, int] = (500, 2000)
    tool_tokens: tuple[int, int] = (100, 2000)
    tool_turns: int = 2


@dataclass(frozen=True)
class Accuracy:
    """The held-out accuracy in [0, 1], on plain handbooks, with tools, and by kind of tool chat."""

    handbooks: float
    tools: float
    by_kind: Mapping[str, float]

    @property
    def rank(self) -> tuple[float, float]:
        """The sort key for the best checkpoint: the lower accuracy, and then the sum of both."""
        return min(self.handbooks, self.tools), self.handbooks + self.tools

    def table(self) -> str:
        """Write the accuracy table of the model card."""
        rows = {"handbooks": self.handbooks, "tools, all": self.tools, **self.by_kind}
        lines = [f"| {kind} | {share:.1%} |" for kind, share in rows.items()]
        return "\n".join(["| held-out cases, while training | right |", "|--|--|", *lines])

    def told(self) -> str:
        """Describe the accuracy in one line."""
        kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in self.by_kind.items())
        return f"handbooks {self.handbooks:.1%}, tools {self.tools:.1%} ({kinds})"


class Keeper:
    """The keeper of the best checkpoint, judged as shipped, with weights rounded to bfloat16."""

    def __init__(
        self, checks: Checks, shape: DecoderShape, tokenizer: Tokenizer, device: str, out: Path
    ) -> None:
        self._tokenizer, self._shape = tokenizer, shape
        self._device, self._out = device, out
        self._cases = draw_cases(tokenizer, checks.count, checks.tokens, seed=CHECK_SEED)
        self._tool_cases = draw_tool_cases(
            tokenizer, checks.count, checks.tool_tokens, checks.tool_turns, CHECK_SEED
        )
        self.best: Accuracy | None = None

    def check(self, model: LlamaForCausalLM) -> Accuracy:
        """Measure the accuracy of `model`, and save it unless an earlier model was better."""
        with tempfile.TemporaryDirectory() as trial:
            save_checkpoint(model, self._shape, self._tokenizer, Path(trial))
            found = self._judged(load_checkpoint(Path(trial)).to(self._device))
            if self.best is None or found.rank >= self.best.rank:
                self.best = found
                _put(Path(trial), self._out)
        return found

    def _judged(self, model: LlamaForCausalLM) -> Accuracy:
        plain = answer_cases(model, self._tokenizer, self._cases)
        tools = answer_cases(model, self._tokenizer, self._tool_cases)
        kinds = {kind: accuracy(outcomes) for kind, outcomes in by_kind(tools).items()}
        return Accuracy(accuracy(plain), accuracy(tools), kinds)


def _put(trial: Path, out: Path) -> None:
    """Replace each file of `out` atomically, because the run may be killed at any time."""
    for file in trial.iterdir():
        unfinished = out / f"{file.name}.new"
        shutil.copyfile(file, unfinished)
        unfinished.replace(out / file.name)
