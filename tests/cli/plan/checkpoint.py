"""Checkpoints for tests of the planner, which reads only config.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def config(path: Path, **changes: object) -> Path:
    file = path / "config.json"
    file.write_bytes(msgspec.json.encode({**LLAMA_8B, **changes}))
    return file
