"""GGUF files of tiny checkpoints, written by the `gguf` library with its own tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.engine.rigs.checkpoints import Checkpoint

_NUMBERS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "sliding_window": "attention.sliding_window",
}
ALPHABET = [chr(256 + byte) for byte in range(256)]


def write_gguf(
    checkpoint: Checkpoint, path: Path, name: str, packed: gguf.GGMLQuantizationType | None = None
) -> Path:
    """Write the checkpoint as architecture `name`; pack matrices as `packed` if their rows allow
    it.

    Like llama.cpp's converter, the function pairs the rows of Llama's queries and keys, adds 1 to
    Gemma's norms, and stacks experts.
    """
    writer = gguf.GGUFWriter(path, name)
    config = json.loads((checkpoint.model_dir / "config.json").read_text())
    for own, theirs in _NUMBERS.items():
        if config.get(own) is not None:
            writer.add_uint32(f"{name}.{theirs}", config[own])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(_full_rope(config)["rope_theta"])
    _add_tokenizer(writer, config["vocab_size"])
    by_arch = {theirs: kind for kind, theirs in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_arch[name], config["num_hidden_layers"])
    for own, numbers in _stacked(load_file(checkpoint.model_dir / "model.safetensors")).items():
        given = _as_converted(name, own, numbers, config)
        known_as = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert known_as is not None, own
        _add(writer, known_as, given, packed)
    if _full_rope(config).get("rope_type") == "llama3":
        _add(writer, "rope_freqs.weight", _llama3_factors(checkpoint), None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _full_rope(config: dict[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = config["rope_parameters"]
    full: dict[str, Any] = rope.get("full_attention", rope)
    return full


def _llama3_factors(checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Return the factors by which `transformers` lowers the rotary frequencies."""
    scaled = checkpoint.truth.model.rotary_emb.inv_freq.numpy()
    plain = 10000.0 ** (-np.arange(len(scaled)) / len(scaled))
    factors: NDArray[np.float32] = (plain / scaled).astype(np.float32)
    return factors


def _add(
    writer: gguf.GGUFWriter,
    name: str,
    numbers: NDArray[np.float32],
    packed: gguf.GGMLQuantizationType | None,
) -> None:
    if packed is None or numbers.ndim == 1:
        writer.add_tensor(name, np.ascontiguousarray(numbers))
    else:
        writer.add_tensor(name, gguf.quantize(numbers, packed), raw_dtype=packed)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    more = (f"token {number}" for number in range(257, vocab_size))
    tokens = [*ALPHABET, "".join(ALPHABET[:2]), *more]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab_size)
    writer.add_token_merges([" ".join(ALPHABET[:2])])
    writer.add_eos_token_id(2)


def _stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors, with a layer's experts stacked in one tensor."""
    stacked: dict[str, Any] = {}
    for name, numbers in sorted(tensors.items()):
        if ".experts." in name and name.count(".") > 6:
            before, _, after = name.partition(".experts.")
            expert, _, matrix = after.partition(".")
            stacked.setdefault(f"{before}.experts.{matrix}", {})[int(expert)] = numbers
        else:
            stacked[name] = numbers
    return {
        name: np.stack([one[expert] for expert in sorted(one)]) if isinstance(one, dict) else one
        for name, one in stacked.items()
    }


def _as_converted(
    name: str, own: str, numbers: NDArray[np.float32], config: dict[str, Any]
) -> NDArray[np.float32]:
    if name == "llama" and (".q_proj." in own or ".k_proj." in own):
        heads = config["num_attention_heads" if ".q_proj." in own else "num_key_value_heads"]
        halves = numbers.reshape(heads, 2, -1, *numbers.shape[1:])
        return halves.swapaxes(1, 2).reshape(numbers.shape)
    return numbers + 1 if name == "gemma3" and "norm" in own else numbers
