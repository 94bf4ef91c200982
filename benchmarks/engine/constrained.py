"""What rows with a JSON schema cost a batch: of 64 rows none has one, or one, or all.

    python -m benchmarks.engine.constrained --device cuda [--model llama-3.1-8b]
    python -m benchmarks.engine.constrained --device cpu --model handbook --rows 4

An engine in this process answers the same prompts each time, with answers of the same length: the
schema wants more items than an answer can hold. Weights are random and tokens are drawn, so a
vocabulary of random words is written beside them: most tokens are words of long texts, as in JSON
that a model was trained to write, but numbers are longer, and hardly any token ends a text.
Prefills are not counted: the time is that from when every row has some tokens to when the first has
all. Rounds of the three kinds take turns, and the best of each kind counts.

Prints a line of JSON a kind: tokens a second, the share lost to the batch without a schema, the
share that rows without one lost; what of the loss is masks' (milliseconds until a mask is made by a
thread that has begun with it, and that a step waited for masks), and the share of rows that were
left out of a step, each of which loses a step or two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer

from benchmarks.engine.constrained_engine import BLOCK_SIZE, Sizes, TimedEngine, opened_engine
from benchmarks.record import emit, progress
from engine.link.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    Grammar,
    SamplingParams,
    Tokens,
    pack_token_ids,
)
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

PATH = NamespacePath.single(Namespace(b"benchmarks......"))
SETTLED = 8  # tokens that every row has when the time begins
KINDS = ("none", "one", "all")
_ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
SCHEMA = Grammar("json_schema", json.dumps({"type": "array", "items": _ITEM, "minItems": 10_000}))


class Device(Enum):
    """Where it runs."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass
class Batch:
    """Rows that are answered together, the first `masked` of them under the schema."""

    engine: TimedEngine
    sizes: Sizes
    masked: int
    told: npt.NDArray[np.int64] = field(init=False)
    finished: int = 0

    def __post_init__(self) -> None:
        self.told = np.zeros(self.sizes.rows, np.int64)

    def run(self, name: str) -> npt.NDArray[np.float64]:
        """Tokens a second of each row."""
        for number, prompt in enumerate(_prompts(self.sizes)):
            grammar = SCHEMA if number < self.masked else None
            self.engine.say(_request(f"{name}/{number}", prompt, self.sizes, number, grammar), self)
        self._until(lambda: self.told.min() >= SETTLED)
        began, before = self.engine.now(), self.told.copy()
        self._until(lambda: self.finished > 0)
        took, after = self.engine.now() - began, self.told.copy()
        self._until(lambda: self.finished == self.sizes.rows)
        return (after - before) / took

    def __call__(self, event: Event) -> None:
        """Hear what a row is told."""
        if isinstance(event, Failed):
            raise RuntimeError(f"a request failed: {event.message}")
        number = int(event.request_id.split("/")[-1])
        if isinstance(event, Tokens):
            self.told[number] += len(event.token_ids)
        elif isinstance(event, Finished):
            if event.completion_tokens != self.sizes.output:
                raise RuntimeError(f"a row ended after {event.completion_tokens} tokens")
            self.finished += 1

    def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.engine.step()


def _prompts(sizes: Sizes) -> npt.NDArray[np.int32]:
    shape = (sizes.rows, sizes.prompt)
    return np.random.default_rng(5).integers(260, 512, shape).astype(np.int32)


def _request(
    name: str, prompt: npt.NDArray[np.int32], sizes: Sizes, seed: int, grammar: Grammar | None
) -> Generate:
    wish = SamplingParams(
        max_tokens=sizes.output, temperature=1.0, seed=seed, ignore_eos=True, grammar=grammar
    )
    return Generate(
        request_id=name,
        token_ids=pack_token_ids(prompt.tolist()),
        namespaces=PATH.spans,
        block_keys=block_keys(PATH, prompt, BLOCK_SIZE),
        flow="flow",
        sampling=wish,
        use_cache=False,
    )


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second of each row, and what the masks took."""

    speeds: npt.NDArray[np.float64]
    of_masks: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Of all rows."""
        return float(self.speeds.sum())


def run_round(engine: TimedEngine, sizes: Sizes, masked: int, name: str) -> Round:
    """Answer all prompts once."""
    before = engine.begin_round()
    speeds = Batch(engine, sizes, masked).run(name)
    left_out = (engine.rows_left_out - before) / (sizes.rows * sizes.output)
    return Round(speeds, {"left_out": left_out, **engine.masks.told()} if masked else {})


def measure(engine: TimedEngine, sizes: Sizes, rounds: int) -> None:
    """Run the kinds in turn, and print the best of each."""
    best: dict[str, Round] = {}
    masked = dict(zip(KINDS, (0, 1, sizes.rows), strict=True))
    for number, kind in product(range(rounds + 1), KINDS):
        done = run_round(engine, sizes, masked[kind], f"{number}/{kind}")
        of_masks = "".join(f", {name} {value:.3g}" for name, value in done.of_masks.items())
        warming = "" if number else " (warm-up)"
        progress(f"{kind}: {done.tokens_per_s:.0f} tokens/s{of_masks}{warming}")
        if number and (kind not in best or done.tokens_per_s > best[kind].tokens_per_s):
            best[kind] = done
    usual = best["none"]
    for kind, done in best.items():
        free, of_free = done.speeds[masked[kind] :], usual.speeds[masked[kind] :]
        emit(
            f"{masked[kind]} of {sizes.rows} rows with a schema",
            tokens_per_s=done.tokens_per_s,
            lost=1 - done.tokens_per_s / usual.tokens_per_s,
            lost_by_others=float(1 - free.sum() / of_free.sum()) if len(free) else None,
            **done.of_masks,
        )


def main(
    device: Annotated[Device | None, typer.Option(help="cuda if there is one.")] = None,
    model: Annotated[str, typer.Option(help="A shape, 'handbook' or a directory.")] = (
        "llama-3.1-8b"
    ),
    rows: Annotated[int, typer.Option(min=2)] = 64,
    prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 256,
    output: Annotated[int, typer.Option(help="Tokens of each.")] = 256,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Measure and print."""
    sizes = Sizes(rows, prompt, output)
    device = device or (Device.CUDA if torch.cuda.is_available() else Device.CPU)
    with opened_engine(model, "cuda" if device is Device.CUDA else "cpu", sizes) as engine:
        measure(engine, sizes, rounds)


if __name__ == "__main__":
    typer.run(main)
