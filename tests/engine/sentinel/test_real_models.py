"""The sentinel over real models reports a flipped byte, and nothing where there is no fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.messages import SamplingParams
from engine.link.stats.engine_stats import SentinelStats
from engine.main import build_core
from engine.startup.loading import OpenedModel, open_model
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.device.flipped_byte import FlippedByte
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import random_prompt
from tests.engine.rigs.rig import NAMESPACE, generate

COMMON = random_prompt(52, seed=3)
KINDS = [
    SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=7, temperature=1.0, seed=5, ignore_eos=True),
    SamplingParams(max_tokens=9, temperature=0.7, seed=6, top_p=0.9, repetition_penalty=1.2),
]


@dataclass(frozen=True)
class Engine:
    """An engine that runs in the test's thread, and its only client."""

    core: EngineCore
    link: MemoryLink
    opened: OpenedModel

    @property
    def stats(self) -> SentinelStats:
        return self.core.stats().sentinel

    def ask(self, name: str, prompt: list[int], sampling: SamplingParams) -> list[int]:
        """Return the answer, after the engine had time to check it."""
        size = self.opened.welcome.block_size
        self.link.say(generate(name, prompt, sampling=sampling, block_size=size))
        for _ in range(2):
            self.core.step()
            while not self.core.is_idle:
                self.core.step()
        self.core.check_invariants()
        return self.link.tokens(name)


@contextmanager
def engine(checkpoint: MakeCheckpoint, name: str, share: float = 1.0) -> Iterator[Engine]:
    config = EngineConfig.of(
        model_dir=str(checkpoint(name).model_dir),
        socket="",
        device="cpu",
        cache_tokens=2048,
        max_running=4,
        max_batch_tokens=40,
        sentinel_share=share,
    )
    opened = open_model(config)
    try:
        link = MemoryLink()
        yield Engine(build_core(config, opened, link), link, opened)
    finally:
        opened.grammars.close()


def talk(engine: Engine, rounds: int = 2) -> list[list[int]]:
    return [
        engine.ask(f"{turn} {at}", COMMON + random_prompt(3 + turn, seed=turn), kind)
        for turn in range(rounds)
        for at, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt-oss", "qwen3-moe", "qwen3.5"])
def test_clean_answers_ring_no_alarm_and_are_as_without_the_sentinel(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    with engine(checkpoint, name) as watched:
        said = talk(watched)
        assert watched.stats.checked >= 4
        assert watched.stats.differed == 0
        assert watched.stats.largest < 0.1  # far below the bound for an alarm
    with engine(checkpoint, name, share=0.0) as alone:
        assert talk(alone) == said
        assert alone.stats == SentinelStats()


def test_one_flipped_byte_of_the_device_rings(checkpoint: MakeCheckpoint) -> None:
    greedy = KINDS[0]
    with engine(checkpoint, "llama") as watched:
        watched.ask("cold", COMMON, greedy)
        cache = watched.core.components.cache
        path, tokens = NamespacePath.single(NAMESPACE), np.array(COMMON, np.int32)
        lease = cache.read(path, tokens, owner="flow", now=0.0)
        assert lease is not None
        fault = FlippedByte(watched.opened.pool, int(lease.block_ids[0]))
        cache.release(lease, now=0.0)
        fault.flip()
        watched.ask("damaged", COMMON, greedy)
        assert (watched.stats.checked, watched.stats.differed) == (1, 1)
        assert watched.stats.largest > 1
        fault.flip()
        # positive control: only the flipped byte made the answer differ
        watched.ask("mended", [*COMMON, 7], greedy)
        assert (watched.stats.checked, watched.stats.differed) == (2, 1)
