"""The architectures of GGUF files that are served, and the Hugging Face architecture of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.models.errors import UnsupportedModel
from engine.models.gguf.header import GgufHeader

_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_TWO_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_FOUR_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"  # tensor with a divisor for each rotary frequency
OUTSIDE_LAYERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
OUTSIDE_LAYERS |= {"output": "lm_head"}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """A family of models, named by the field `general.architecture` of a file.

    `in_layer` maps the name of a tensor within a layer to the decoder's name. With `pairs`, the
    rows of queries and keys are ordered in the pairs that llama.cpp's rope rotates. With
    `norms_less_one`, the file has the weights of norms plus 1; the 1 is subtracted, because the
    decoder adds it itself. `fields` are the fields of config.json that have another name in the
    file. `constants` are the fields of config.json that no file has.
    """

    architecture: str
    model_type: str
    in_layer: Mapping[str, str]
    pairs: bool = False
    norms_less_one: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(
        "LlamaForCausalLM", "llama", {**_ATTENTION, **_MLP, **_TWO_NORMS}, pairs=True
    ),
    "qwen2": GgufFamily("Qwen2ForCausalLM", "qwen2", {**_ATTENTION, **_MLP, **_TWO_NORMS}),
    "qwen3": GgufFamily("Qwen3ForCausalLM", "qwen3", {**_ATTENTION, **_MLP, **_TWO_NORMS}),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {**_ATTENTION, **_EXPERTS, **_TWO_NORMS},
        fields={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        constants={"norm_topk_prob": True},
    ),
    "gemma3": GgufFamily(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {**_ATTENTION, **_MLP, **_FOUR_NORMS},
        norms_less_one=True,
        fields={
            "attention.sliding_window": "sliding_window",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        constants={"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0},
    ),
}


def family_of(header: GgufHeader) -> GgufFamily:
    """Return the family of the file's architecture. Raises UnsupportedModel."""
    name = header.fields.get("general.architecture")
    if header.fields.get("split.count", 0) not in (0, 1):
        raise UnsupportedModel("one of several GGUF files: served is the file that joins them")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedModel(f"GGUF of {name!r}: served are {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[name]
    if header.fields.get(f"{name}.expert_count") and "expert_count" not in family.fields:
        raise UnsupportedModel(f"GGUF of {name!r} with experts, which is served without")
    return family


def one_number(value: Any, name: str) -> Any:
    """Return the number in a field. The field may be a list of one number for every layer.

    All numbers of a list must be equal. A stored float32 becomes the shortest decimal that rounds
    to it, which is probably the original number.
    """
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{name} differs from layer to layer, which is not served")
        value = value[0]
    return float(str(np.float32(value))) if isinstance(value, float) else value
