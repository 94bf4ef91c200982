"""The engine serves the default configs of `transformers`, and computes the same sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as TYPES

from engine.models.checks import check_served
from engine.models.layers.layer import attentions
from engine.models.served.reading import planned_layers
from engine.models.served.registry import SERVED

# the last of several configs with one class name wins; it is the text model's
MODEL_TYPES = {name: kind for kind, name in TYPES.items()}
MODEL_TYPES["Mistral4ForCausalLM"] = "mistral4"  # missing from the mapping of `transformers`
MODEL_TYPES["MiMoForCausalLM"] = "qwen2"  # MiMo's config is Qwen2's with a number of draft heads

# Fields of all published files that `transformers` ignores, or has no default for.
GIVEN: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "NemotronHForCausalLM": {"layers_block_type": ["linear_attention", "full_attention"]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["linear_attention"] * 31 + ["full_attention"]},
}


@pytest.mark.parametrize("name", [one for one in SERVED.architectures if "ForCausalLM" in one])
def test_the_defaults_of_transformers_are_served(tmp_path: Path, name: str) -> None:
    truth: Any = transformers.CONFIG_MAPPING[MODEL_TYPES[name]](**GIVEN.get(name, {}))
    # a field that differs between layers may then be read, and has the first layers' value
    truth.allow_global_per_layer_attribute_access = True
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**truth.to_dict(), "architectures": [name]}))
    model = check_served(tmp_path, has_weights=False)
    attention = attentions(model.layers)[0]
    assert (model.vocab_size, model.hidden_size) == (truth.vocab_size, truth.hidden_size)
    assert len(model.layers) == truth.num_hidden_layers
    assert attention.num_heads == truth.num_attention_heads
    heads = truth.hidden_size // truth.num_attention_heads
    size = getattr(truth, "head_dim", None) or heads
    if hasattr(truth, "kv_lora_rank"):
        assert attention.kept == (1, truth.kv_lora_rank + truth.qk_rope_head_dim, False)
    else:
        assert attention.kept == (truth.num_key_value_heads, size, True)
    chunk = getattr(truth, "attention_chunk_size", truth.max_position_embeddings)
    assert model.max_positions >= min(chunk, truth.max_position_embeddings)
    planned = planned_layers(path)
    assert [one.num_weights for one in planned] == [one.num_weights for one in model.layers]
