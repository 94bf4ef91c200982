"""An fp8 cache in a whole engine: in every tier, cached answers equal uncached ones."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.config import KvDtype
from engine.link.messages import SamplingParams
from engine.startup.warm_up import warm_up
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.files.int4_checkpoints import rewrite
from tests.seams.support.mix import NAMESPACES, UNPRESSED, Alone, Ask, alone_on, run_mix
from tests.seams.support.real_engine import Bounds, RealEngine

FP8 = Bounds(6, 16, 24, 4, kv_dtype="fp8")
DISK_BYTES = 1 << 20
PROMPT = tuple((11 * i * i + 5) % 50 + 5 for i in range(70))
GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
MIX = [
    Ask(i % 9, 10 + i % 31, (5 + i % 4,) * (i % 12), 4 + i % 9, NAMESPACES[i % 2], i % 3 or None)
    for i in range(32)
]
PRESSED = {
    "device": FP8,
    "graphs": replace(FP8, graph_tokens=64, overlap_scheduling=True),
    "host": replace(FP8, host_blocks=8),
    "disk": replace(FP8, host_blocks=4, disk_bytes=DISK_BYTES),
}


@pytest.fixture(scope="module")
def in_fp8(checkpoint: Checkpoint) -> Alone:
    """Return a function that computes the answer of a request that runs alone."""
    return alone_on(checkpoint.model_dir, bounds=replace(UNPRESSED, kv_dtype="fp8"))


@pytest.mark.parametrize("tier", PRESSED)
def test_any_reuse_gives_the_tokens_of_each_request_alone(
    tier: str, checkpoint: Checkpoint, in_fp8: Alone, tmp_path: Path
) -> None:
    engine = RealEngine(str(checkpoint.model_dir), PRESSED[tier], disk=tmp_path)
    run_mix(engine, MIX)
    # The last bit of a sum decides how a value halfway between two numbers of e4m3 is rounded, and
    # depends on how many rows are computed at once. So one answer may differ.
    assert sum(engine.tokens(str(i)) != in_fp8(ask) for i, ask in enumerate(MIX)) <= 1
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.windows["all"].hit_tokens > 0
    moved = {(way.source, way.target) for way in stats.tiers.ways if way.blocks}
    if tier in ("host", "disk"):
        assert ("device", "host") in moved
        assert ("host", "device") in moved
    engine.expect_nothing_left()
    engine.close()


def test_answers_are_those_of_rounded_keys_and_values(in_fp8: Alone, alone: Alone) -> None:
    """Positive control: an fp8 cache changes results, but only a little."""
    same = sum(in_fp8(ask)[0] == alone(ask)[0] for ask in MIX)
    assert len(MIX) * 0.6 < same
    assert any(in_fp8(ask) != alone(ask) for ask in MIX)


@pytest.mark.parametrize(
    ("before", "after", "found"), [("fp8", "fp8", True), ("fp8", "auto", False),
                                   ("auto", "fp8", False), ("auto", "auto", True)]
)  # fmt: skip
def test_blocks_of_one_format_are_never_found_under_another(
    checkpoint: Checkpoint, tmp_path: Path, before: KvDtype, after: KvDtype, found: bool
) -> None:
    bounds = Bounds(12, 16, 64, 3, disk_bytes=DISK_BYTES)
    first = RealEngine(str(checkpoint.model_dir), replace(bounds, kv_dtype=before), disk=tmp_path)
    for name in "ab":
        first.submit(name, PROMPT, GREEDY, namespace=NAMESPACES[0])
        first.run()
    assert first.finished("b").reused.tokens == 64
    first.core.spill(60.0)
    first.close()
    second = RealEngine(str(checkpoint.model_dir), replace(bounds, kv_dtype=after), disk=tmp_path)
    assert (second.fingerprint == first.fingerprint) == found
    assert bool(warm_up(second.core.components)) == found
    second.submit("again", PROMPT, GREEDY, namespace=NAMESPACES[0])
    second.run()
    assert second.finished("again").reused.tokens == (64 if found else 0)
    if found:
        assert second.tokens("again") == first.tokens("b")
    second.close()


def test_scales_of_kv_that_a_checkpoint_brings_are_named_and_change_nothing(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine ignores these scales, since its own scale of each head and token clips nothing."""
    bounds = replace(UNPRESSED, kv_dtype="fp8")
    model_dir = Path(shutil.copytree(checkpoint.model_dir, tmp_path / "model"))
    scales = {
        f"model.layers.{layer}.self_attn.{name}": torch.tensor(1e-4)
        for layer in range(3)
        for name in ("k_scale", "v_scale")
    }
    without = alone_on(model_dir, bounds=bounds)
    wanted = [without(ask) for ask in MIX[:8]]
    rewrite(model_dir, {**load_file(model_dir / "model.safetensors"), **scales})
    caplog.set_level(logging.INFO)
    with_scales = alone_on(model_dir, bounds=bounds)
    assert [with_scales(ask) for ask in MIX[:8]] == wanted
    [line] = [line for line in caplog.messages if "left 6 tensors in the files" in line]
    assert "3 *.k_scale, 3 *.v_scale" in line
