"""Weights in fp8, and mixtures of experts: cached equals uncached, under preemption and eviction.

Inputs of products in fp8 are rounded, and a number that lies halfway between two of them is rounded
by the last bit of a sum, which depends on how many rows are computed at once. So with fp8 one
answer of many may differ.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.models.weight_formats.test_fp8 import KINDS, make_quantised
from tests.engine.models.weight_formats.test_fp8_experts import FAMILIES, make_mixture
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.seams.support.mix import NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIXES = 6
MIXTURES = ("qwen3-moe", "mixtral")


def drawn_mix(seed: int) -> list[Ask]:
    rng = random.Random(seed)
    return [
        Ask(
            at_step=rng.randrange(9),
            shared=rng.randint(8, 40),
            private=tuple(rng.randrange(5, 9) for _ in range(rng.randrange(12))),
            max_tokens=rng.randint(4, 12),
            namespace=rng.choice(NAMESPACES),
            seed=rng.choice((None, 0, 1)),
        )
        for _ in range(8)
    ]


@pytest.mark.parametrize("kind", ["channel", "block", *MIXTURES, "mixtral-fp8"])
def test_any_reuse_gives_the_tokens_of_each_request_alone(kind: str, tmp_path: Path) -> None:
    if kind in KINDS:
        make_quantised(KINDS[kind], tmp_path)
    elif kind not in MIXTURES:
        make_mixture(KINDS["channel"], tmp_path, FAMILIES["mixtral"])
    else:
        make_checkpoint(RECIPES[kind], tmp_path)
    alone, wrong, hits, preemptions = alone_on(tmp_path), 0, 0, 0
    for seed in range(MIXES):
        mix = drawn_mix(seed)
        engine = RealEngine(str(tmp_path), Bounds(6, 16, 24, 4))
        run_mix(engine, mix)
        wrong += sum(engine.tokens(str(i)) != alone(ask) for i, ask in enumerate(mix))
        stats = engine.core.stats()
        hits += stats.windows["all"].hit_tokens
        preemptions += stats.preemptions
        engine.expect_nothing_left()
    assert wrong <= (kind not in MIXTURES)
    assert hits > 0
    assert preemptions > 0
