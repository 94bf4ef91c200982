"""What rows with a JSON schema cost a batch: of 64 rows none has one, or one, or all.

    python -m benchmarks.engine.constrained --device cuda [--model llama-3.1-8b]
    python -m benchmarks.engine.constrained --device modelled

An engine in this process answers the same prompts each time, with answers of the same length: the
schema wants more items than an answer can hold. Weights are random and tokens are drawn, so a
vocabulary of random words is written beside them. Prefills are not counted: the time is that from
when every row has some tokens to when the first has all. Rounds of the three kinds take turns, and
the best of each kind counts. Prints a line of JSON a kind: tokens a second, the share lost to the
batch without a schema, and the share that rows without one lost.

Without a GPU, `modelled` puts the engine's core before a device that only takes time, with masks
that take `--mask-us` each in `--mask-threads` threads.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
import torch
import typer

from benchmarks.engine.grammars import write_tokenizer
from benchmarks.record import emit, progress
from engine.config import DeviceName, EngineConfig
from engine.core import EngineCore
from engine.link.messages import (
    Event,
    Failed,
    Finished,
    FromEngine,
    Generate,
    Grammar,
    SamplingParams,
    StepReply,
    Tokens,
    pack_token_ids,
)
from engine.link.socket_link import Incoming
from engine.main import CUDA_MAX_STEP_MS, build_core
from engine.scheduling.step_builder import StepLimits
from engine.startup.loading import open_model
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.shapes import SHAPES, model_directory
from tests.doubles.modelled.products import ProductModel
from tests.doubles.modelled.replay import Replay

PATH = NamespacePath.single(Namespace(b"benchmarks......"))
BLOCK_SIZE = 16
CLIENT = b"benchmark"
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
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of a batch, tokens of each prompt and answer."""

    rows: int
    prompt: int
    output: int


class Engine(Protocol):
    """An engine that can be asked, on its own clock."""

    def now(self) -> float:
        """Seconds."""
        ...

    def say(self, request: Generate, hear: Callable[[Event], None]) -> None:
        """Ask."""
        ...

    def step(self) -> None:
        """Let it do a step."""
        ...


@dataclass
class LocalLink:
    """A link within this process that calls who asked."""

    dropped_frames: int = 0
    hears: dict[str, Callable[[Event], None]] = field(default_factory=dict)
    incoming: list[Incoming] = field(default_factory=list)

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """What was asked; nothing comes while it waits."""
        if timeout_s and not self.incoming:
            time.sleep(min(timeout_s, 0.001))
        incoming, self.incoming = self.incoming, []
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Tell who asked."""
        del client
        if isinstance(message, StepReply):
            for event in message.events:
                self.hears[event.request_id](event)
        return True


@dataclass(frozen=True, slots=True)
class RealEngine:
    """A model with random weights."""

    core: EngineCore
    link: LocalLink

    def now(self) -> float:
        """Seconds of this machine's clock."""
        return time.perf_counter()

    def say(self, request: Generate, hear: Callable[[Event], None]) -> None:
        """Ask."""
        self.link.hears[request.request_id] = hear
        self.link.incoming.append(Incoming(CLIENT, request))

    def step(self) -> None:
        """A step."""
        self.core.step()


@dataclass(frozen=True, slots=True)
class ModelledEngine:
    """The same before a device that only takes time."""

    replay: Replay

    def now(self) -> float:
        """Seconds of the simulated clock."""
        return self.replay.time.now

    def say(self, request: Generate, hear: Callable[[Event], None]) -> None:
        """Ask."""
        self.replay.link.say(request, hear)

    def step(self) -> None:
        """A step."""
        self.replay.core.step()


@dataclass
class Batch:
    """Rows that are answered together, the first `masked` of them under the schema."""

    engine: Engine
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


@contextmanager
def real_engine(model: str, device: DeviceName, sizes: Sizes) -> Iterator[RealEngine]:
    """One with room for the batch, and a vocabulary that spells JSON."""
    tokens = sizes.rows * (sizes.prompt + sizes.output + 2 * BLOCK_SIZE)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = model_directory(model, Path(scratch))
        if model in SHAPES:
            write_tokenizer(directory, SHAPES[model]["vocab_size"])
            ends = SHAPES[model] | {"eos_token_id": SHAPES[model]["vocab_size"] - 1}
            (directory / "config.json").write_text(json.dumps(ends))
        config = EngineConfig(
            model_dir=str(directory),
            socket="",
            load_format="dummy",
            device=device,
            cache_tokens=tokens,
            max_running=sizes.rows,
            max_model_len=sizes.prompt + sizes.output + BLOCK_SIZE,
            block_size=BLOCK_SIZE,
        )
        opened, link = open_model(config), LocalLink()
    with closing(opened.grammars):
        core = build_core(config, opened, link)
        gc.collect()
        gc.freeze()
        yield RealEngine(core, link)


def measure(engine: Engine, sizes: Sizes, rounds: int) -> None:
    """Run the kinds in turn, and print the best of each."""
    best: dict[str, npt.NDArray[np.float64]] = {}
    masked = dict(zip(KINDS, (0, 1, sizes.rows), strict=True))
    for number, kind in product(range(rounds + 1), KINDS):
        speeds = Batch(engine, sizes, masked[kind]).run(f"{number}/{kind}")
        progress(f"{kind}: {speeds.sum():.0f} tokens/s" + ("" if number else " (warm-up)"))
        if number and (kind not in best or speeds.sum() > best[kind].sum()):
            best[kind] = speeds
    usual = best["none"]
    for kind, speeds in best.items():
        free, of_free = speeds[masked[kind] :], usual[masked[kind] :]
        emit(
            f"{masked[kind]} of {sizes.rows} rows with a schema",
            tokens_per_s=float(speeds.sum()),
            lost=float(1 - speeds.sum() / usual.sum()),
            lost_by_others=float(1 - free.sum() / of_free.sum()) if len(free) else None,
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
    mask_us: Annotated[float, typer.Option(help="Of one mask; modelled.")] = 60.0,
    mask_threads: Annotated[int, typer.Option(help="That make masks; modelled.")] = 4,
) -> None:
    """Measure and print."""
    sizes = Sizes(rows, prompt, output)
    device = device or (Device.CUDA if torch.cuda.is_available() else Device.MODELLED)
    if device is Device.MODELLED:
        limits = StepLimits(8192, 256, CUDA_MAX_STEP_MS / 1e3)
        price = ProductModel()
        replay = Replay(limits, model=price, mask_s=mask_us * 1e-6, mask_threads=mask_threads)
        measure(ModelledEngine(replay), sizes, 1)
        return
    with real_engine(model, "cuda" if device is Device.CUDA else "cpu", sizes) as engine:
        measure(engine, sizes, rounds)


if __name__ == "__main__":
    typer.run(main)
