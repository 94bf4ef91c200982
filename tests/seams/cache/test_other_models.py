"""Weights in fp8, mixtures, windows, sinks and caps: cached equals uncached, under preemption and
eviction. Contexts are longer than the windows.

Inputs of products in fp8 are rounded, and a number that lies halfway between two of them is rounded
by the last bit of a sum, which depends on how many rows are computed at once. So with fp8 one
answer of many may differ.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.models.weight_formats.test_fp8 import KINDS, make_quantised
from tests.engine.models.weight_formats.test_fp8_experts import FAMILIES, make_mixture
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.seams.support.mix import NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

PRESSED = Bounds(6, 16, 24, 4)
PRESSURES = {  # by the seed of a mix in which blocks are found, preempted and loaded
    3: PRESSED,
    5: replace(PRESSED, graph_tokens=64, overlap_scheduling=True),
    7: replace(PRESSED, host_blocks=8),
}
PLAIN_KINDS = ("qwen3-moe", "mixtral", "mistral-window", "gpt-oss", "gemma2", "gemma3")


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


@pytest.mark.parametrize("kind", ["channel", "block", "mixtral-channel", *PLAIN_KINDS])
def test_any_reuse_gives_the_tokens_of_each_request_alone(kind: str, tmp_path: Path) -> None:
    if kind in KINDS:
        make_quantised(KINDS[kind], tmp_path)
    elif kind not in PLAIN_KINDS:
        make_mixture(KINDS["channel"], tmp_path, FAMILIES["mixtral"])
    else:
        make_checkpoint(RECIPES[kind], tmp_path)
    alone, wrong, hits, preemptions = alone_on(tmp_path), 0, 0, 0
    moved: set[tuple[str, str]] = set()
    for seed, pressure in PRESSURES.items():
        mix = drawn_mix(seed)
        engine = RealEngine(str(tmp_path), pressure)
        run_mix(engine, mix)
        wrong += sum(engine.tokens(str(i)) != alone(ask) for i, ask in enumerate(mix))
        stats = engine.core.stats()
        hits += stats.windows["all"].hit_tokens
        preemptions += stats.preemptions
        moved |= {(way.source, way.target) for way in stats.tiers.ways if way.blocks}
        engine.expect_nothing_left()
        engine.close()
    assert wrong <= (kind not in PLAIN_KINDS)
    assert hits > 0
    assert preemptions > 0
    assert {("device", "host"), ("host", "device")} <= moved
