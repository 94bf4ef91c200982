"""A plan's bytes equal the bytes that a model allocates, for all formats of weights and of KV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cli.plan.decoder import DecoderCounts, read_decoder
from engine.models.checks import check_matrices
from engine.models.config import ModelConfig, kv_layout
from engine.models.errors import UnsupportedModel
from engine.models.layers.layer_inputs import Table
from engine.models.modules import Experts, Linear, WeightFormat, walk
from engine.models.parameters import Parameters, empty_parameters
from engine.models.served.reading import check_format, read_model_config
from engine.models.served.registry import SERVED
from engine.models.weight_formats.fp8 import Fp8Format
from engine.models.weight_formats.int4 import Int4Format
from engine.models.weight_formats.plain import PLAIN
from storage.layouts.kv_layout import FP8
from storage.pools.device_pool import DevicePool
from tests.engine.rigs.checkpoints import RECIPES, config_of

BLOCKS, BLOCK_SIZE = 3, 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "num_key_value_heads": 2}
LATENTS = {  # sizes that are multiples of 128
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "v_head_dim": 64,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "head_dim": 16,
}
EXPERTS = {
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "pad_token_id": None,
    "attention_bias": False,
    "mlp_bias": False,
}
# A plan ignores the config's flags of biases.
MODELS = [name for name in RECIPES if "biases" not in name]
FORMATS: list[WeightFormat] = [
    *SERVED.planned_formats,
    Fp8Format("fp8", "block", "group"),
    Fp8Format("fp8", "channel", "static"),
    Int4Format("awq", "awq", 128, has_zeros=True),
    Int4Format("gptq", "gptq", 64, has_zeros=False),
    Int4Format("packed", "pack-quantized", 32, has_zeros=True),
]


def saved(tmp_path: Path, name: str) -> Path:
    """Write a recipe's config.json, with sizes that every format divides."""
    recipe = RECIPES[name]
    ropes = {} if recipe.family != "Phi3" else {"rope_parameters": {"rope_type": "default"}}
    latents = LATENTS if "kv_lora_rank" in recipe.fields else {}
    fields = {**recipe.fields, **SIZES, **EXPERTS, **ropes, **latents}
    if fields.get("hidden_size_per_layer_input"):
        fields["hidden_size_per_layer_input"] = 128
    if "moe_latent_size" in fields:
        fields["moe_latent_size"] = 128
    config = config_of(replace(recipe, fields=fields))
    config.architectures = [f"{recipe.family}ForCausalLM"]
    config.save_pretrained(tmp_path)
    return tmp_path


def drafting(model_dir: Path) -> ModelConfig:
    """Return the model with its draft head, if its files have one."""
    model = read_model_config(model_dir)
    return replace(model, draft_head=model.possible_head)


def held_bytes(parameters: Parameters) -> int:
    """Count the bytes of tables and matrices. Norms and sinks are left out, as in a plan."""
    parts = parameters.layers, parameters.layer_inputs, parameters.draft_head
    matrices = [one for kind in (Linear, Experts, Table) for one in walk(parts, kind)]
    tables = {id(one): one for one in (parameters.embedding, parameters.head)}
    tensors = [*walk(tuple(matrices), Tensor), *tables.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def allocated(model: ModelConfig, dtype: str) -> Parameters | None:
    """Allocate the model on the meta device; return None if its format is not served."""
    try:
        check_format(model.weight_format, model.layers)
        check_matrices(model)
    except UnsupportedModel:
        return None
    return empty_parameters(model, DTYPES[dtype], torch.device("meta"))


@pytest.mark.parametrize("name", MODELS)
def test_weights_in_every_format(tmp_path: Path, name: str) -> None:
    model_dir, served = saved(tmp_path, name), set()
    for dtype in DTYPES:
        planned = read_decoder(model_dir / "config.json", dtype)
        for one in FORMATS:
            model = replace(drafting(model_dir), weight_format=one)
            parameters, plan = allocated(model, dtype), planned.with_weights_in(one)
            assert plan.is_served == (parameters is not None)
            if parameters is not None:
                served.add(one)
                assert plan.weight_bytes == held_bytes(parameters)
                norms = parameters.num_bytes - plan.weight_bytes
                assert 0 < norms < 0.04 * parameters.num_bytes, "of tiny models"
    assert PLAIN in served
    assert len(served) > 5 or name in ("gpt-oss", "llama4")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", [*DTYPES, FP8])
def test_kv_in_every_type(tmp_path: Path, name: str, dtype: str) -> None:
    model_dir = saved(tmp_path, name)
    planned: DecoderCounts = read_decoder(model_dir / "config.json").with_kv_in(dtype)
    layout = kv_layout(drafting(model_dir).layers_with_memory, dtype, BLOCK_SIZE)
    pool = DevicePool(layout, BLOCKS, torch.device("cpu"))
    held = pool.tensor.numel() * pool.tensor.element_size()
    assert planned.kv_bytes_per_token * BLOCK_SIZE * BLOCKS == held
