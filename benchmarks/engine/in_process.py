"""An engine in this process, without HTTP: an in-memory link and random weights."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.drafting.draft import Drafting
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.main import build_core
from engine.startup.loading import OpenedModel, open_model
from engine.step import Runner
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.memory_link import MemoryLink
from tests.doubles.engine.shapes import model_directory

PATH = NamespacePath.single(Namespace(b"benchmarks......"))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a benchmark: requests in a round, prompt and answer tokens, rounds."""

    requests: int
    prompt: int
    output: int
    rounds: int = 1


def opened_model(model: str, **settings: Any) -> tuple[EngineConfig, OpenedModel]:
    """Open a model's shape ('handbook' or a directory) with random weights and these settings."""
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = str(model_directory(model, Path(scratch)))
        config = EngineConfig.of(model_dir=directory, socket="", load_format="dummy", **settings)
        return config, open_model(config)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine and its only client, in one process."""

    core: EngineCore
    link: MemoryLink
    opened: OpenedModel
    config: EngineConfig

    @classmethod
    def open(cls, model: str, max_running: int, *, quick: bool) -> LocalEngine:
        """Open an engine whose cache takes all free memory, or has 4,096 tokens with `quick`."""
        sizes = {"cache_tokens": 4_096, "max_running": 8} if quick else {"max_running": max_running}
        config, opened = opened_model(model, **sizes)
        link = MemoryLink(sleeps=True)
        return cls(build_core(config, opened, link), link, opened, config)

    def with_drafting(self, drafting: Drafting, over: Callable[[Runner], Runner]) -> LocalEngine:
        """Return an engine with the same model, an empty cache and this drafting.

        `over` wraps the model's runner.
        """
        opened, link = (
            replace(self.opened, runner=over(self.opened.runner)),
            MemoryLink(sleeps=True),
        )
        core = build_core(self.config, opened, link, drafting=drafting)
        return LocalEngine(core, link, opened, self.config)

    def ask(self, rng: np.random.Generator, size: Size, *, use_cache: bool = True) -> None:
        """Queue requests with new prompts. Their request ids are numbers."""
        shape = (size.requests, size.prompt)
        prompts = rng.integers(10, self.opened.model.vocab_size, shape).astype(np.int32)
        for number, prompt in enumerate(prompts):
            request = Generate(
                request_id=str(number),
                token_ids=pack_token_ids(prompt.tolist()),
                namespaces=PATH.spans,
                block_keys=block_keys(PATH, prompt, self.opened.welcome.block_size),
                flow="flow",
                sampling=SamplingParams(max_tokens=size.output, temperature=0.0, ignore_eos=True),
                use_cache=use_cache,
            )
            self.link.say(request)

    def run(self) -> float:
        """Step until all queued requests have ended, and return the seconds."""
        before = time.perf_counter()
        self.core.step()
        while not self.core.is_idle:
            self.core.step()
        return time.perf_counter() - before
