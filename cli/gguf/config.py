"""config.json and generation_config.json of a model, from the fields of its GGUF file."""

from __future__ import annotations

from typing import Any

from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.gguf.families import family_of, one_number
from engine.models.gguf.header import GgufHeader

_COMMON = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}
_GEMMA3_27B_LAYERS = 62


def read_config(header: GgufHeader, rope_factors: list[float] | None) -> dict[str, Any]:
    """Return the fields of config.json. `rope_factors` is the tensor of rope factors.

    Raises BadConfig, UnsupportedModel.
    """
    family, fields = family_of(header), header.fields
    of_model = f"{fields['general.architecture']}."
    config = {
        instead: one_number(fields[of_model + name], of_model + name)
        for name, instead in {**_COMMON, **family.fields}.items()
        if of_model + name in fields
    }
    config |= family.constants
    config |= {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": _vocabulary(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": "bfloat16",
    }
    if family.model_type == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    if family.model_type == "gemma3_text":
        config["query_pre_attn_scalar"] = _gemma_scale(config)
    if scaling := _rope_scaling(fields, of_model, config, rope_factors):
        config["rope_scaling"] = scaling
    _tokens(fields, config)
    return config


def read_generation(header: GgufHeader) -> dict[str, Any]:
    """Return the fields of generation_config.json: end tokens, and sampling defaults."""
    ids = [header.fields.get(f"tokenizer.ggml.{name}") for name in _END_TOKENS]
    names = {f"general.sampling.{name}": instead for name, instead in _SAMPLING.items()}
    return {
        "eos_token_id": list(dict.fromkeys(one for one in ids if isinstance(one, int))),
        **{to: one_number(header.fields[a], a) for a, to in names.items() if a in header.fields},
    }


def _tokens(fields: dict[str, Any], config: dict[str, Any]) -> None:
    for name in ("bos_token_id", "eos_token_id"):
        if f"tokenizer.ggml.{name}" in fields:
            config[name] = fields[f"tokenizer.ggml.{name}"]


def _vocabulary(header: GgufHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise BadConfig("the GGUF file has no table token_embd.weight")
    return table.shape[0]


def _gemma_scale(config: dict[str, Any]) -> Any:
    """Return query_pre_attn_scalar. Attention scores are divided by its square root.

    The file does not give this number. As in llama.cpp, it is the head size for all models but the
    largest.
    """
    if config.get("num_hidden_layers") == _GEMMA3_27B_LAYERS:
        return config["hidden_size"] // config["num_attention_heads"]
    return config.get("head_dim", 256)


def _rope_scaling(
    fields: dict[str, Any], of_model: str, config: dict[str, Any], factors: list[float] | None
) -> dict[str, Any] | None:
    kind = fields.get(f"{of_model}rope.scaling.type", "none")
    factor = fields.get(f"{of_model}rope.scaling.factor")
    original = fields.get(f"{of_model}rope.scaling.original_context_length")
    if factors is not None:
        # The file gives Llama 3's scaling as a list of factors. This is LongRoPE with the same
        # factors for short and long contexts.
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": config.get("max_position_embeddings"),
            "attention_factor": 1.0,
        }
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(f"{of_model}rope.scaling.type {kind!r}: served are linear, yarn")
    scaling = {"rope_type": kind, "factor": factor}
    return scaling if original is None else scaling | {"original_max_position_embeddings": original}
