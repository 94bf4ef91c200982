"""The engine that `constrained` measures, in this process.

Knows: how it is built, and its clock. Does not know: what is asked of it.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.engine.grammars import write_tokenizer
from benchmarks.engine.timed_masks import MaskTimes
from engine.config import DeviceName, EngineConfig
from engine.core import EngineCore
from engine.link.messages import Event, FromEngine, Generate, StepReply
from engine.main import build_core
from engine.startup.loading import open_model
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.shapes import SHAPES, model_directory

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of a batch, tokens of each prompt and answer."""

    rows: int
    prompt: int
    output: int


class HearingLink(MemoryLink):
    """A link within this process that calls who asked."""

    def __init__(self) -> None:
        super().__init__(sleeps=True)
        self.hears: dict[str, Callable[[Event], None]] = {}

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Tell who asked."""
        del client
        if isinstance(message, StepReply):
            for event in message.events:
                self.hears[event.request_id](event)
        return True


@dataclass(frozen=True, slots=True)
class TimedEngine:
    """An engine on this machine's clock."""

    core: EngineCore
    link: HearingLink
    masks: MaskTimes

    @property
    def rows_left_out(self) -> int:
        """Rows whose masks came too late, since the start."""
        return self.core.components.counters.rows_left_out

    def begin_round(self) -> int:
        """Forget what masks took; returns how many rows were left out before."""
        self.masks.clear()
        return self.rows_left_out

    def now(self) -> float:
        """Seconds of this machine's clock."""
        return time.perf_counter()

    def say(self, request: Generate, hear: Callable[[Event], None]) -> None:
        """Ask."""
        self.link.hears[request.request_id] = hear
        self.link.say(request)

    def step(self) -> None:
        """A step."""
        self.core.step()


@contextmanager
def opened_engine(model: str, device: DeviceName, sizes: Sizes) -> Iterator[TimedEngine]:
    """A model with random weights, room for the batch, and a vocabulary that spells JSON."""
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
            cache_tokens=_tokens(sizes),
            max_running=sizes.rows,
            max_model_len=sizes.prompt + sizes.output + BLOCK_SIZE,
            block_size=BLOCK_SIZE,
        )
        opened, link, times = open_model(config), HearingLink(), MaskTimes()
    with closing(opened.grammars):
        constraint_of, masks = times.constraint_of(opened.constraint_of), times.maker(opened.masks)
        core = build_core(config, replace(opened, constraint_of=constraint_of, masks=masks), link)
        gc.collect()
        gc.freeze()
        yield TimedEngine(core, link, times)


def _tokens(sizes: Sizes) -> int:
    return sizes.rows * (sizes.prompt + sizes.output + 2 * BLOCK_SIZE)
