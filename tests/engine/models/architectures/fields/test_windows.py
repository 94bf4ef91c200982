"""The layers with sliding windows are those of `transformers`, for published configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.models.config import kv_layout
from engine.models.served.reading import planned_layers, read_model_config
from tests.engine.models.test_config import GEMMA2, GEMMA3, GPT_OSS, LLAMA, MISTRAL, QWEN2, QWEN3

QWEN3_MOE = {
    **LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"]}
FLAG = {"use_sliding_window": True}
SIX = {"num_hidden_layers": 6}
CASES: list[tuple[dict[str, Any], dict[str, Any], list[int | None]]] = [
    (LLAMA, {"sliding_window": 64}, [None] * 6),
    (MISTRAL, {"sliding_window": 64}, [64] * 6),
    (MISTRAL, {"sliding_window": None}, [None] * 6),
    # a window as long as the context changes nothing
    (MISTRAL, {"sliding_window": 512}, [None] * 6),
    (MISTRAL, {"sliding_window": 511}, [511] * 6),
    (MIXTRAL, {"sliding_window": 64}, [64] * 6),
    (MIXTRAL, {}, [None] * 6),
    (QWEN2, {"sliding_window": 64}, [None] * 6),
    (QWEN2, {**FLAG, "sliding_window": 64, "max_window_layers": 4}, [None] * 4 + [64] * 2),
    (QWEN2, {**FLAG, "sliding_window": 64}, [None] * 6),  # the window applies only from layer 28 on
    (QWEN3, {**FLAG, "sliding_window": 64, "max_window_layers": 0}, [64] * 6),
    (QWEN3, {**FLAG, "sliding_window": 64, "max_window_layers": -1}, [64] * 6),
    (QWEN3, {**FLAG, "sliding_window": None, "max_window_layers": 0}, [None] * 6),
    (
        QWEN3,
        {**FLAG, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 3},
        [64, None] * 3,
    ),
    (QWEN3, {"layer_types": ["full_attention"] * 6}, [None] * 6),
    (QWEN3_MOE, {**FLAG, "sliding_window": 64}, [64] * 6),
    (QWEN3_MOE, {"sliding_window": 64}, [None] * 6),
    (GPT_OSS, {}, [128, None] * 3),
    (GPT_OSS, {"layer_types": ["full_attention", "sliding_attention"] * 3}, [None, 128] * 3),
    (GEMMA2, {"sliding_window": 64}, [64, None] * 3),
    (GEMMA3, {"sliding_window": 64}, [64] * 5 + [None]),
    (GEMMA3, {"sliding_window": 64, "sliding_window_pattern": 3}, [64, 64, None] * 2),
]


def windows(path: Path, config: dict[str, Any]) -> list[int | None]:
    (path / "config.json").write_text(json.dumps(config))
    planned = [layer.attention.window for layer in planned_layers(path / "config.json")]
    read = [layer.attention.window for layer in read_model_config(path).layers]
    assert planned == read, "what is planned is what is served"
    return read


@pytest.mark.parametrize(("base", "fields", "expected"), CASES)
def test_each_layer_has_the_window_of_its_family(
    tmp_path: Path, base: dict[str, Any], fields: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(tmp_path, {**base, **SIX, **fields}) == expected


@pytest.mark.parametrize("base", [QWEN2, QWEN3, GPT_OSS, GEMMA2, GEMMA3])
def test_what_is_left_out_is_as_transformers_has_it(tmp_path: Path, base: dict[str, Any]) -> None:
    fields = {**base, **FLAG, "num_hidden_layers": 30, "max_position_embeddings": 32768}
    name = fields["architectures"][0].removesuffix("ForCausalLM")
    family = getattr(transformers, f"{'Gemma3Text' if name == 'Gemma3' else name}Config")
    del fields["architectures"]
    truth = family(**fields)
    sliding = {"sliding_attention": truth.sliding_window, "full_attention": None}
    expected = [sliding[kind] for kind in truth.layer_types]
    given = {**fields, "architectures": base["architectures"]}
    assert windows(tmp_path, given) == expected
    assert any(expected)


def test_a_mistral_config_without_the_field_has_the_family_s_window(tmp_path: Path) -> None:
    long = {**MISTRAL, "max_position_embeddings": 32768}
    assert windows(tmp_path, long) == [None] * 2
    del long["sliding_window"]
    assert windows(tmp_path, long) == [4096] * 2


def test_the_layout_of_kv_says_which_layers_have_windows(tmp_path: Path) -> None:
    windows(tmp_path, {**GEMMA2, **SIX, "sliding_window": 64})
    layers = read_model_config(tmp_path).layers
    layout = kv_layout(layers, "bfloat16", 16)
    assert [(one.layers, one.window) for one in layout.groups] == [
        ((0, 2, 4), 64),
        ((1, 3, 5), None),
    ]
    assert layout.block_bytes == kv_layout(layers[1::2] * 2, "bfloat16", 16).block_bytes
