"""Weights in fp8 and int4, mixtures of experts: cached equals uncached, preempted and evicted too.

Inputs of products in fp8 are rounded, and a number that lies halfway between two of them is rounded
by the last bit of a sum, which depends on how many rows are computed at once. So with fp8 one
answer of many may differ.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.link.messages import SamplingParams
from engine.startup.warm_up import warm_up
from tests.engine.models.weight_formats.test_fp8 import KINDS, make_quantised
from tests.engine.rigs import int4_checkpoints
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.engine.rigs.int4_checkpoints import make_int4
from tests.seams.support.mix import NAMESPACES, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

MIXES = 6
PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)


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


def made(kind: str, parent: Path) -> Path:
    if kind in KINDS:
        return make_quantised(KINDS[kind], parent).model_dir
    if kind in int4_checkpoints.KINDS:
        return make_int4(int4_checkpoints.KINDS[kind], parent).int4.model_dir
    return make_checkpoint(RECIPES[kind], parent).model_dir


@pytest.mark.parametrize("kind", ["channel", "block", "qwen3-moe", "awq", "gptq"])
def test_any_reuse_gives_the_tokens_of_each_request_alone(kind: str, tmp_path: Path) -> None:
    model_dir = made(kind, tmp_path)
    alone, wrong, hits, preemptions = alone_on(model_dir), 0, 0, 0
    for seed in range(MIXES):
        mix = drawn_mix(seed)
        bounds = Bounds(6, 16, 24, 4, graph_tokens=64 * (seed % 2))
        engine = RealEngine(str(model_dir), bounds)
        run_mix(engine, mix)
        wrong += sum(engine.tokens(str(i)) != alone(ask) for i, ask in enumerate(mix))
        stats = engine.core.stats()
        hits += stats.windows["all"].hit_tokens
        preemptions += stats.preemptions
        engine.expect_nothing_left()
    assert wrong <= (kind in KINDS)
    assert hits > 0
    assert preemptions > 0


@pytest.mark.parametrize("same", [True, False])
def test_blocks_of_int4_are_not_found_by_a_model_of_the_very_numbers_written_out(
    tmp_path: Path, *, same: bool
) -> None:
    checkpoint = make_int4(int4_checkpoints.KINDS["awq"], tmp_path)
    bounds, disk = Bounds(12, 16, 64, 3, disk_bytes=1 << 20), tmp_path / "disk"
    first = RealEngine(str(checkpoint.int4.model_dir), bounds, disk=disk)
    for name in "ab":
        first.submit(name, PROMPT, GREEDY, namespace=NAMESPACES[0])
        first.run()
    assert first.finished("b").reused.tokens == 64
    first.core.spill(5.0)
    first.close()
    after = checkpoint.int4.model_dir if same else checkpoint.written_out
    second = RealEngine(str(after), bounds, disk=disk)
    assert (second.fingerprint == first.fingerprint) == same
    assert bool(warm_up(second.core.components)) == same
    second.submit("again", PROMPT, GREEDY, namespace=NAMESPACES[0])
    second.run()
    assert second.finished("again").reused.tokens == (64 if same else 0)
    assert second.tokens("again") == first.tokens("b"), "the same numbers, whoever computes them"
    second.close()
