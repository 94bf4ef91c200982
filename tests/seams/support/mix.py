"""Requests in several namespaces with shared prefixes, and each request's answer when alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from engine.link.messages import SamplingParams
from engine.models.served.registry import SERVED, ServedModels
from prefix_cache.namespace import Namespace
from tests.engine.rigs.checkpoints import VOCAB_SIZE
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACES = (Namespace(b"a" * 16), Namespace(b"b" * 16))
LONGEST = 40 + 12 + 12
COMMON = tuple((7 * i * i + 3) % (VOCAB_SIZE - 10) + 5 for i in range(40))
UNPRESSED = Bounds(num_blocks=64, block_size=16, max_batch_tokens=128, max_running=1)


@dataclass(frozen=True)
class Ask:
    """One request of a mix."""

    at_step: int
    shared: int
    private: tuple[int, ...]
    max_tokens: int
    namespace: Namespace
    seed: int | None  # seed of the sampling; None: greedy

    @property
    def prompt(self) -> tuple[int, ...]:
        return COMMON[: self.shared] + self.private

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=0.0 if self.seed is None else 0.8,
            seed=self.seed,
            ignore_eos=True,
        )


asks = st.builds(
    Ask,
    at_step=st.integers(0, 8),
    shared=st.integers(1, 40),
    private=st.lists(st.integers(5, 8), max_size=12).map(tuple),
    max_tokens=st.integers(1, 12),
    namespace=st.sampled_from(NAMESPACES),
    seed=st.none() | st.integers(0, 3),
)


Alone = Callable[[Ask], list[int]]


def alone_on(model_dir: Path, served: ServedModels = SERVED, bounds: Bounds = UNPRESSED) -> Alone:
    """Return a function that answers a request: no other request runs, and nothing is reused."""
    engine = RealEngine(str(model_dir), bounds, served=served)
    number = 0

    @cache
    def tokens(ask: Ask) -> list[int]:
        nonlocal number
        number += 1
        name = f"alone-{number}"
        engine.submit(name, ask.prompt, ask.sampling, namespace=NAMESPACES[0], use_cache=False)
        engine.run()
        assert engine.finished(name).reused.tokens == 0
        return engine.tokens(name)

    return tokens


def run_mix(engine: RealEngine, mix: list[Ask]) -> None:
    for step in range(9):
        for number, ask in enumerate(mix):
            if ask.at_step == step:
                engine.submit(str(number), ask.prompt, ask.sampling, namespace=ask.namespace)
        engine.step()
    engine.run()
