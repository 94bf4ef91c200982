"""Cached answers equal uncached ones, under preemption and eviction, for every kind of model.

The models have weights in fp8 and in four bits, mixtures, windows, sinks and caps, with a plain and
an fp8 cache. Contexts are longer than the windows.

A value that is rounded to fp8 may be halfway between two numbers. Then a sum's last bit decides,
which depends on how many rows are computed at once. With fp8, one answer of many may therefore
differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from engine.config import EngineConfig, KvDtype, WindowsName
from tests.engine.models.weight_formats.test_fp8 import KINDS, make_quantised
from tests.engine.models.weight_formats.test_fp8_experts import FAMILIES, make_mixture
from tests.engine.models.weight_formats.test_int4_experts import recipe as int4_mixture
from tests.engine.models.weight_formats.test_mxfp4 import SIZES as GPT_OSS_SIZES
from tests.engine.models.weight_formats.test_mxfp4 import in_mxfp4
from tests.engine.rigs.checkpoints import RECIPES, Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import KINDS as INT4_KINDS
from tests.engine.rigs.files.int4_checkpoints import make_int4
from tests.examples import in_the_zoo
from tests.seams.support.mix import NAMESPACES, UNPRESSED, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

GPT_OSS = Recipe("GptOss", GPT_OSS_SIZES)
PRESSED = Bounds(6, 16, 24, 4, host_blocks=8)
PRESSURES = (PRESSED, replace(PRESSED, graph_tokens=64, overlap_scheduling=True))
SEED = 4  # a mix in which blocks are found and loaded, and requests preempted
PLAIN_KINDS = (
    *("qwen3-moe", "mixtral", "mistral-window", "gpt-oss", "gemma2", "gemma3", "phi3"),
    *("glm4-moe", "ministral3", "olmo3", "gemma4", "gemma4-shared", "gemma4-moe"),
    *("deepseek-v2", "mistral4"),
)
MAKES: dict[str, Callable[[Path], object]] = {
    **{kind: partial(make_quantised, KINDS[kind]) for kind in ("channel", "block", "fp8-static")},
    "mixtral-channel": lambda path: make_mixture(KINDS["channel"], path, FAMILIES["mixtral"]),
    "qwen3-moe-block": partial(make_mixture, KINDS["block"]),
    "qwen3-moe-int4": lambda path: make_int4(INT4_KINDS["packed-asym"], path, int4_mixture()),
    "mxfp4": lambda path: in_mxfp4(make_checkpoint(GPT_OSS, path / "plain"), path / "int4"),
    **{kind: partial(make_checkpoint, RECIPES[kind]) for kind in PLAIN_KINDS},
}
IN_DIRECTORY = {"qwen3-moe-int4": "int4", "mxfp4": "int4"}
ROUNDED = ("channel", "block", "fp8-static", "mixtral-channel", "qwen3-moe-block")
# Models with an fp8 cache: every kind of attention, latents, weights in fp8, a mixture.
KV_IN_FP8 = (*("channel", "gpt-oss", "gemma2", "gemma3", "phi3", "mixtral", "gemma4", "mistral4"),)


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


def pressure(kind: str, kv_dtype: KvDtype) -> Bounds:
    """Return one of the two `PRESSURES`. With fp8 KV, each kind of model gets the other of them."""
    return replace(
        PRESSURES[(list(MAKES).index(kind) + (kv_dtype == "fp8")) % 2], kv_dtype=kv_dtype
    )


CASES = [*((kind, "auto") for kind in MAKES), *((kind, "fp8") for kind in KV_IN_FP8)]
# models left out, because other cases test their parts
ALIKE = [
    *((kind, "auto") for kind in ("fp8-static", "mixtral-channel", "mistral-window", "glm4-moe")),
    *((kind, "auto") for kind in ("phi3", "ministral3", "olmo3", "mistral4", "gemma4-moe")),
    *((kind, "fp8") for kind in ("gemma2", "phi3", "mixtral")),
]


def with_windows(windows: WindowsName, config: EngineConfig) -> EngineConfig:
    return config.changed(windows=windows)


@pytest.mark.parametrize(
    ("kind", "kv_dtype"), [*(one for one in CASES if one not in ALIKE), *in_the_zoo(*ALIKE)]
)
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    kind: str, kv_dtype: KvDtype, tmp_path: Path
) -> None:
    """The reference engine frees windows if that saves memory. The tested engine frees none."""
    MAKES[kind](tmp_path)
    model_dir = tmp_path / IN_DIRECTORY.get(kind, "")
    alone = alone_on(model_dir, bounds=replace(UNPRESSED, kv_dtype=kv_dtype))
    mix = drawn_mix(SEED)
    over = partial(with_windows, "whole")
    with closing(RealEngine(str(model_dir), pressure(kind, kv_dtype), over=over)) as engine:
        run_mix(engine, mix)
        wrong = sum(engine.tokens(str(i)) != alone(ask) for i, ask in enumerate(mix))
        stats = engine.core.stats()
        engine.expect_nothing_left()
    moved = {(way.source, way.target) for way in stats.tiers.ways if way.blocks}
    assert wrong <= (kind in ROUNDED or kv_dtype == "fp8")
    assert stats.windows["all"].hit_tokens > 0
    assert stats.preemptions > 0
    assert {("device", "host"), ("host", "device")} <= moved


@pytest.mark.parametrize(
    ("kind", "kv_dtype"),
    [("gpt-oss", "fp8"), ("gemma2", "auto"), ("gemma4-shared", "auto"), ("gemma4", "fp8")],
)
def test_windows_that_are_freed_change_no_answer(
    kind: str, kv_dtype: KvDtype, tmp_path: Path
) -> None:
    MAKES[kind](tmp_path)
    apart = replace(UNPRESSED, kv_dtype=kv_dtype)
    mix, given = drawn_mix(SEED), pressure(kind, kv_dtype)
    whole, freed = (partial(with_windows, one) for one in ("whole", "freed"))
    with (
        closing(RealEngine(str(tmp_path), apart, over=whole)) as one_by_one,
        closing(RealEngine(str(tmp_path), given, over=freed)) as engine,
    ):
        run_mix(engine, mix)
        for i, ask in enumerate(mix):
            one_by_one.submit(str(i), ask.prompt, ask.sampling, namespace=NAMESPACES[0])
            one_by_one.run()
        wrong = sum(engine.tokens(str(i)) != one_by_one.tokens(str(i)) for i in range(len(mix)))
        stats = engine.core.stats()
        engine.expect_nothing_left()
    assert wrong <= (kv_dtype == "fp8")
    assert stats.states.hits > 0
    assert stats.preemptions > 0
