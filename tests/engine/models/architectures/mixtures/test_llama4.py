"""Llama 4: layers with rope and experts, the end of a context, and vision models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.models.config import ModelConfig
from engine.models.errors import ModelError
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.layers.rope import QueryScaling
from engine.models.served.reading import read_model_config
from tests.engine.rigs.checkpoints import RECIPES, config_of, make_checkpoint, saved_seeing
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

# The config fields of Scout and Maverick that the engine reads.
SCOUT: dict[str, Any] = {
    "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": 4,
    "floor_scale": 8192, "head_dim": 128, "hidden_size": 5120, "interleave_moe_layer_step": 1,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "no_rope_layers": [],
    "max_position_embeddings": 10485760, "num_attention_heads": 40, "num_experts_per_tok": 1,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "use_qk_norm": True, "vocab_size": 202048,
    "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
MAVERICK = SCOUT | {
    "interleave_moe_layer_step": 2, "num_local_experts": 128, "use_qk_norm": False,
    "max_position_embeddings": 1048576, "rope_scaling": None,
}  # fmt: skip


def seeing(folder: Path, text: dict[str, Any]) -> ModelConfig:
    config = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    return read_model_config(folder)


def attention_of(model: ModelConfig) -> list[AttentionConfig]:
    return [layer.attention for layer in model.layers]


@pytest.mark.parametrize(("text", "step"), [(SCOUT, 1), (MAVERICK, 2)])
def test_published_configs_are_read(tmp_path: Path, text: dict[str, Any], step: int) -> None:
    model = seeing(tmp_path, text)
    assert model.max_positions == 8192
    assert model.names.own("language_model.model.norm.weight") == "model.norm.weight"
    still = [index for index, one in enumerate(attention_of(model)) if not one.interleaved]
    assert still == list(range(3, 48, 4))
    assert attention_of(model)[0].norms_heads == text["use_qk_norm"]
    rope = attention_of(model)[3].rope
    assert rope is not None
    assert rope.queries == QueryScaling(0.1, 8192, 1)
    mixtures = [isinstance(layer.mlp, MixtureConfig) for layer in model.layers]
    assert mixtures == [(index + 1) % step == 0 for index in range(48)]


def test_a_context_ends_with_the_first_chunk(tmp_path: Path) -> None:
    """End the context with the first attention chunk, within which the model equals that of
    `transformers`.

    After it, attention in chunks would give other results.
    """
    recipe = RECIPES["llama4"]
    chunked = replace(recipe, fields={**recipe.fields, "attention_chunk_size": 40})
    truth = make_checkpoint(chunked, tmp_path)
    model = read_model_config(tmp_path)
    assert model.max_positions == 40
    prompt = random_prompt(60)
    driven = HandDriven(build_runner(tmp_path))
    got = driven.logits([data_row(driven.add(prompt[:40]), 0, 40)])
    expected = truth.logits(prompt)
    assert (got - expected[:40]).abs().max() < 1e-4
    truth.truth.config.attention_chunk_size = config_of(recipe).attention_chunk_size
    assert (truth.logits(prompt)[40:] - expected[40:]).abs().max() > 0.05


def test_the_decoder_of_a_model_that_sees(tmp_path: Path) -> None:
    text = config_of(RECIPES["llama4"])
    vision = transformers.Llama4VisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        image_size=28, patch_size=14, vision_output_dim=32, projector_input_dim=32,
        projector_output_dim=32,
    )  # fmt: skip
    config = transformers.Llama4Config(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = transformers.Llama4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 3:
                parameter.normal_(0.0, 0.1)
            elif "norm" in name:
                parameter.normal_(1.0, 0.2)
    truth = saved_seeing(model, tmp_path)
    prompt = random_prompt(37)
    driven = HandDriven(build_runner(tmp_path))
    got = driven.logits([data_row(driven.add(prompt), 0, 37)])
    assert (got - truth.logits(prompt)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"layer_types": ["sliding_attention"] * 48}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    seeing(tmp_path, SCOUT)
    with pytest.raises(ModelError, match=named):
        seeing(tmp_path, SCOUT | changed)
