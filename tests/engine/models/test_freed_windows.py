"""Models give the results of `transformers` although KV beyond the window is freed.

KV is freed only in models where this makes room.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from engine.models.config import kv_layout
from engine.models.freed_windows import MemoryLayouts, freed, pays, whole, window_of
from engine.models.served.reading import read_model_config
from kernels.ops import triton_ops
from storage.layouts.window_layout import WindowLayout
from tests.engine.conftest import MakeCheckpoint
from tests.engine.models.forward.test_decoder import TOLERANCE, chunked
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    data_row,
    random_prompt,
    sampling,
)

# Models with windows in some layers: in every second one, in the first ones, and with four sizes of
# heads.
MODELS = ["gpt-oss", "gemma2", "gemma3", "gemma4", "gemma4-shared", "gemma4-moe", "qwen2-window"]
models = pytest.mark.parametrize("name", [*MODELS, "olmo3", "exaone4", "smollm3", "dots1"])


def freeing(checkpoint: MakeCheckpoint, name: str) -> HandDriven:
    return HandDriven(build_runner(checkpoint(name).model_dir, frees_windows=True))


def layouts(checkpoint: MakeCheckpoint, name: str) -> MemoryLayouts | None:
    return freed(read_model_config(checkpoint(name).model_dir).layers_with_memory, "float32", 16)


@models
def test_logits_are_those_of_transformers_however_the_prompt_is_cut(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    driven = freeing(checkpoint, name)
    assert driven.runner.rings is not None
    prompt = random_prompt(140)
    expected = checkpoint(name).logits(prompt)
    for chunks in ([140], [1] * 140, [16, 16, 16, 92], [5, 100, 1, 34], [97, 43]):
        got = chunked(driven, driven.add(prompt), chunks)
        assert (got - expected).abs().max() < TOLERANCE, chunks


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels are interpreted")
def test_our_kernels_read_rings_and_scratch_blocks(checkpoint: MakeCheckpoint) -> None:
    """Run the GPU kernels in the interpreter, which is slow, so only one model is tested."""
    model_dir = checkpoint("gpt-oss").model_dir
    driven = HandDriven(build_runner(model_dir, ops=triton_ops(), frees_windows=True))
    prompt = random_prompt(75)
    got = chunked(driven, driven.add(prompt), [40, 33, 1, 1])
    assert (got - checkpoint("gpt-oss").logits(prompt)).abs().max() < TOLERANCE


@models
def test_the_pool_has_no_layer_with_a_window(checkpoint: MakeCheckpoint, name: str) -> None:
    model = read_model_config(checkpoint(name).model_dir)
    given = layouts(checkpoint, name)
    assert given is not None
    assert given.frees_windows
    assert isinstance(given.states, WindowLayout)
    both = kv_layout(model.layers_with_memory, "float32", 16)
    assert {group.window for group in given.kv.groups} == {None}
    assert given.kv.token_bytes + given.states.kv.token_bytes == both.token_bytes
    assert given.states.state_bytes % given.kv.block_bytes == 0
    assert given.states.places >= 2 + 2, "a window of 24 touches two blocks before a row's first"


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen3.5", "nemotron-h"])
def test_others_keep_what_they_have(checkpoint: MakeCheckpoint, name: str) -> None:
    """Free nothing in models with windows in all layers or in none, and in models with recurrent
    layers.
    """
    assert layouts(checkpoint, name) is None
    model = read_model_config(checkpoint(name).model_dir)
    kept = whole(model.layers_with_memory, "float32", "float32", 16)
    assert kept.kv == kv_layout(model.layers_with_memory, "float32", 16)
    assert not kept.frees_windows


def test_rows_of_a_mixed_batch_do_not_disturb_each_other(checkpoint: MakeCheckpoint) -> None:
    driven = freeing(checkpoint, "gemma3")
    prompts = [random_prompt(length, seed=length) for length in (133, 68, 90, 57)]
    sequences = [driven.add(prompt) for prompt in prompts]
    driven.logits([data_row(sequences[0], 0, 132), data_row(sequences[1], 0, 67)])
    driven.logits([data_row(sequences[2], 0, 21)])
    parts = [(132, 1), (67, 1), (21, 69), (0, 57)]
    mixed = [data_row(one, *part) for one, part in zip(sequences, parts, strict=True)]
    got = driven.logits(mixed).split([row.num_new for row in mixed])  # type: ignore[no-untyped-call]
    for row, prompt, logits in zip(mixed, prompts, got, strict=True):
        expected = checkpoint("gemma3").logits(prompt)[row.start : row.end]
        assert (logits - expected).abs().max() < TOLERANCE


def test_a_window_that_is_left_behind_is_not_kept(checkpoint: MakeCheckpoint) -> None:
    """Keep only a window's last blocks: a sequence overwrites the oldest blocks of its ring."""
    driven = freeing(checkpoint, "gpt-oss")
    assert driven.runner.rings is not None
    assert driven.states is not None
    driven.generate(driven.add(random_prompt(3), sampling(200)), 16)
    pool = driven.runner.rings.pool
    used = pool.rings[: pool.shape.scratch].view(pool.num_slots, -1).any(1)
    assert int(used.sum()) == len(driven.states.slots) == 200
    assert pool.layout.places == 4, "64 of the 203 tokens"


@pytest.mark.parametrize(("window", "layers", "is_freed"), [(128, 12, True), (4096, 12, False)])
def test_windows_are_freed_where_that_makes_room(
    checkpoint: MakeCheckpoint, window: int, layers: int, *, is_freed: bool
) -> None:
    """Free the windows where this makes room for more sequences.

    Half of the layers have a window, which covers most of a sequence of 4,096 tokens.
    """
    model = read_model_config(checkpoint("gpt-oss").model_dir)
    with_one, without = (
        next(one for one in model.layers if (window_of(one) is None) is whole_context)
        for whole_context in (False, True)
    )
    some = replace(with_one, mixer=replace(with_one.attention, window=window))
    mixed = [some, without] * layers
    given = freed(mixed, "bfloat16", 16)
    assert given is not None
    assert pays(given, kv_layout(mixed, "bfloat16", 16)) is is_freed
