"""The accuracy of weight and KV formats: answers about handbooks, and KL divergence.

    python -m benchmarks.engine.accuracy [--handbooks 64] [--warm 4] [--prompts 16] [--device cuda]

The embedded model answers greedily in this process, by the engine's own code. The first question
about a handbook is uncached. Later questions find the handbook in the cache. All formats get the
same questions. `of_plain` is the number of right answers, divided by the number with unquantised
weights and KV.

Then each format computes prompts with their right answers. The format's distributions of the next
token are compared with those of unquantised weights and KV: KL(plain || format), in nats. One value
is the mean over all tokens. The other (`answer_...`) is the mean over the tokens whose next token
belongs to the answer. On a CPU the references compute in float32, and on a GPU in bfloat16. int4
weights are rounded to the nearest number, without calibration
(`tests.engine.rigs.files.rounded_int4`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.handbook_answers import AskedEngine, room_for
from benchmarks.record import emit, progress
from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from engine.startup.loading import OpenedModel, open_model
from handbook.texts.cases import HandbookCase, draw_cases
from tests.doubles.engine.shapes import EMBEDDED
from tests.engine.rigs.files.rounded_int4 import write_int4
from tests.engine.rigs.hand_driven import BLOCK_SIZE, HandDriven, data_row

AT_ONCE = 8

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, and the engine settings that select it."""

    name: str
    model_dir: Path = EMBEDDED
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, device: Device, cache_tokens: int) -> tuple[EngineConfig, OpenedModel]:
        """Open the model in this format, with a pool of `cache_tokens`."""
        config = EngineConfig.of(
            model_dir=str(self.model_dir),
            socket="",
            device=device,
            block_size=BLOCK_SIZE,
            cache_tokens=cache_tokens,
            graph_tokens=0,
            **self.settings,
        )
        return config, open_model(config)


def main(
    handbooks: Annotated[int, typer.Option(help="Each is asked about once uncached.")] = 64,
    warm: Annotated[int, typer.Option(help="Questions with each handbook cached.")] = 4,
    prompts: Annotated[int, typer.Option(help="Whose distributions are compared.")] = 16,
    tokens: Annotated[int, typer.Option(help="Of a handbook, about.")] = 1250,
    only: Annotated[str, typer.Option(help="Formats by name, separated by commas.")] = "",
    device: Annotated[Device, typer.Option(help="Where it is computed.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Use the smallest sizes.")] = False,
) -> None:
    """Print two JSON lines for each format: its accuracy, and its divergence from plain weights."""
    if quick:
        handbooks, warm, prompts, tokens = 2, 2, 1, 300
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    asked = [draw_cases(tokenizer, number, 1 + warm, tokens) for number in range(handbooks)]
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        names = {"plain", *(name.strip() for name in only.split(","))}
        formats = [one for one in all_formats(Path(scratch)) if not only or one.name in names]
        _emit_answers(formats, device, asked)
        _emit_divergences(formats, device, [cases[0] for cases in asked[:prompts]])


def all_formats(scratch: Path) -> Iterator[Format]:
    """Yield all formats. The first is unquantised, the reference of the comparison."""
    yield Format("plain")
    yield Format("bfloat16", settings={"dtype": "bfloat16"})
    yield Format("fp8 weights", settings={"quantization": "fp8"})
    yield Format("fp8 KV", settings={"kv_dtype": "fp8"})
    yield Format("fp8 weights and KV", settings={"quantization": "fp8", "kv_dtype": "fp8"})
    yield Format("int4 weights", write_int4(EMBEDDED, scratch))


def _emit_answers(formats: list[Format], device: Device, asked: list[list[HandbookCase]]) -> None:
    plain = 0
    for one in formats:
        progress(f"answers: {one.name}")
        uncached, cached = answers(one, device, asked)
        right = sum(uncached) + sum(cached)
        plain = plain or right
        emit(
            f"answers, {one.name}",
            uncached_right=sum(uncached),
            uncached=len(uncached),
            cached_right=sum(cached),
            cached=len(cached),
            of_plain=right / plain,
        )


def answers(
    of: Format, device: Device, asked: list[list[HandbookCase]]
) -> tuple[list[bool], list[bool]]:
    """Judge each handbook's first answer, and each later answer: True for a right answer."""
    rounds = [asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE)]
    room = max(room_for([case for cases in some for case in cases], BLOCK_SIZE) for some in rounds)
    engine = AskedEngine(*of.open(device, room))
    uncached: list[bool] = []
    cached: list[bool] = []
    for some in rounds:
        uncached += engine.right([cases[0] for cases in some], cached=False)
        cached += engine.right([case for cases in some for case in cases[1:]], cached=True)
    return uncached, cached


def _emit_divergences(formats: list[Format], device: Device, cases: Sequence[HandbookCase]) -> None:
    room = 2 * room_for(cases[:1], BLOCK_SIZE)
    plain, *others = (one.open(device, room)[1] for one in formats)
    truth = [log_probabilities(plain, case) for case in cases]
    for one, opened in zip(formats[1:], others, strict=True):
        progress(f"divergences: {one.name}")
        pairs = zip(cases, truth, strict=True)
        found = [divergence(log_probabilities(opened, case), right) for case, right in pairs]
        every = torch.cat(found)
        of_answers = torch.cat(
            [one[-len(case.answer) :] for one, case in zip(found, cases, strict=True)]
        )
        emit(
            f"divergence, {one.name}",
            tokens=len(every),
            kl_mean=float(every.mean()),
            kl_p99=float(every.quantile(0.99)),
            answer_tokens=len(of_answers),
            answer_kl_mean=float(of_answers.mean()),
            answer_kl_p99=float(of_answers.quantile(0.99)),
        )


@torch.inference_mode()
def log_probabilities(opened: OpenedModel, case: HandbookCase) -> Tensor:
    """Compute log-probabilities of the next token at each token of a prompt with its right answer.

    Returns (tokens, V) float32.
    """
    assert isinstance(opened.runner, ModelRunner)
    driven, runner = HandDriven(opened.runner), opened.runner
    ids = case.prompt + case.answer[:-1]
    batch = driven.batch([data_row(driven.add(ids), 0, len(ids))])
    every = torch.arange(len(ids), device=batch.token_ids.device)
    logits = runner.decoder.logits(batch.token_ids, batch.layout, runner.pool.layers, every)
    return F.log_softmax(logits.float(), -1).cpu()


def divergence(found: Tensor, truth: Tensor) -> Tensor:
    """Compute each token's KL(truth || found) in nats, from log-probabilities (tokens, V)."""
    return (truth.exp() * (truth - found)).sum(-1)


if __name__ == "__main__":
    typer.run(main)
