"""Time to load a prefix from host memory and compute the tokens behind it, in three ways.

    python -m benchmarks.overlap --model llama-3.1-8b [--tokens 16000] [--new 64] [--quick]

The ways: all copies first and then the step; the step begun when only late layers are missing, as
the engine does it, with as many bytes of them as it allows and with more; and the first tokens of
the prefix computed while the others are loaded. Each is given in ms from the first copy until the
step's tokens are on the host. Weights are random.

Knows: the runner, copies, late layers. Does not know: the cache, the scheduler or HTTP.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from benchmarks.record import emit, progress
from benchmarks.shapes import model_directory
from benchmarks.step import Shape, rows_of
from engine.config import EngineConfig
from engine.loading import OpenedModel, open_model
from engine.step import Step
from prefix_cache.cache import PrefixCache
from storage.copies import Copies, Direction, copies_for
from storage.runs import Runs, runs_of
from storage.tier_mover import block_bytes_of

REPEATS = 9
HEADS = (512, 1_024, 2_048)  # tokens computed while the others are loaded
MORE_LATE = (2, 4)  # times the bytes that the engine allows to be late


@dataclass(frozen=True)
class Scene:
    """A model, and a prompt of which all but the last tokens lie in the host."""

    opened: OpenedModel
    host: Tensor  # (blocks of the prefix, block bytes), pinned
    block_ids: list[int]
    step: Step  # its new tokens, behind the prefix

    def runs(self, first_block: int = 0) -> Runs:
        """The blocks of the prefix from one on."""
        numbers = np.arange(first_block, len(self.host))
        targets = np.array(self.block_ids[first_block : len(self.host)], np.int64)
        return runs_of(block_bytes_of(self.opened.pool), self.host, targets, numbers)

    def load(self, copies: Copies, runs: Runs) -> None:
        """Copies alone."""
        copies.copy(Direction.UP, runs, copies.mark()).synchronize()

    def compute(self) -> None:
        """The step."""
        self.opened.runner.launch(self.step).collect()

    def load_then_compute(self, copies: Copies, runs: Runs) -> None:
        """All copies, then the step."""
        self.load(copies, runs)
        self.compute()

    def compute_when_promised(self, copies: Copies, runs: Runs) -> None:
        """The step as soon as only late layers are missing."""
        copying = copies.copy(Direction.UP, runs, copies.mark())
        while not copying.promise() and not copying.query():
            pass
        self.compute()

    def behind_head(self, copies: Copies, head: Step, rest: Runs) -> None:
        """The first tokens computed, the others loaded meanwhile; then the step."""
        copying = copies.copy(Direction.UP, rest, copies.mark())
        self.opened.runner.launch(head).collect()
        copying.synchronize()
        self.compute()


def scene_of(opened: OpenedModel, tokens: int, new: int) -> Scene:
    """A prompt of `tokens` in the host and `new` behind them."""
    cache = PrefixCache(num_blocks=opened.num_blocks, block_size=opened.block_size)
    (row,) = rows_of(Shape("prompt", (), ((new, tokens + new),)), cache)
    lease = row.sequence.lease
    if lease is None:
        raise RuntimeError("a row of a step has a lease")
    shape = (tokens // opened.block_size, opened.pool.block_bytes)
    on_cuda = opened.pool.tensor.is_cuda
    host = torch.zeros(shape, dtype=torch.uint8, pin_memory=on_cuda)
    return Scene(opened, host, lease.block_ids.tolist(), Step((row,)))


def measure(name: str, do: Callable[[], None]) -> None:
    """Tell the median and the range."""
    took = []
    for _ in range(REPEATS + 2):
        before = time.perf_counter()
        do()
        took.append((time.perf_counter() - before) * 1e3)
    took = sorted(took[2:])
    emit(name, ms=float(np.median(took)), least_ms=took[0], most_ms=took[-1])


def measure_all(opened: OpenedModel, tokens: int, new: int, heads: Iterable[int]) -> None:
    """Each way, and what the first consists of."""
    scene, device, late = scene_of(opened, tokens, new), opened.pool.tensor.device, opened.pool.late
    copies, runs = copies_for(device), scene.runs()
    measure("the copies alone", partial(scene.load, copies, runs))
    measure("the step alone", scene.compute)
    measure("all copies, then the step", partial(scene.load_then_compute, copies, runs))
    if late is not None:
        in_order, usual = copies_for(device, late), late.max_bytes
        for times in (1, *MORE_LATE):
            late.max_bytes = times * usual
            name = f"late layers of at most {late.max_bytes / 1e6:.0f} MB"
            measure(name, partial(scene.compute_when_promised, in_order, runs))
        late.max_bytes = usual
    (row,) = scene.step.rows
    for length in heads:
        head = Step((replace(row, start=0, num_new=length),))
        rest = scene.runs(length // opened.block_size)
        measure(
            f"{length} tokens computed meanwhile", partial(scene.behind_head, copies, head, rest)
        )


def main(
    model: Annotated[str, typer.Option(help="A shape's name, 'handbook' or a directory.")] = (
        "handbook"
    ),
    tokens: Annotated[int, typer.Option(help="Of the prefix in host memory.")] = 16_000,
    new: Annotated[int, typer.Option(help="Tokens behind it.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest sizes.")] = False,
) -> None:
    """One JSON line a way."""
    tokens = 256 if quick else tokens
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        config = EngineConfig(
            model_dir=str(model_directory(model, Path(scratch))),
            socket="",
            load_format="dummy",
            cache_tokens=tokens + new + 1_024,
        )
        progress("opening")
        opened = open_model(config)
    measure_all(opened, tokens, new, (64,) if quick else HEADS)


if __name__ == "__main__":
    typer.run(main)
