"""A trained decoder as a Hugging Face directory: written in bfloat16, read back in float32.

Knows config.json, generation_config.json and model.safetensors; the tokenizer's files are
`handbook.tokenizer`'s, the model card `handbook.card`'s.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from handbook.decoder import Decoder, Shape
from handbook.tokenizer import BEGIN, END, PAD

SHIPPED = Path(__file__).parent / "model"
"""The directory of the model that comes with Ratoon."""


def save_checkpoint(model: Decoder, tokenizer: Tokenizer, directory: Path) -> None:
    """Write the weights, rounded to bfloat16, and the two configs into `directory`."""
    weights = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in model.named_parameters()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    tokens = {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(PAD),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **dataclasses.asdict(model.shape),
        "head_dim": model.shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **tokens,
    }
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"do_sample": False, **tokens})


def load_checkpoint(directory: Path) -> Decoder:
    """The decoder saved in `directory`, its bfloat16 weights widened to float32."""
    config = json.loads((directory / "config.json").read_text())
    fields = {field.name for field in dataclasses.fields(Shape)}
    model = Decoder(Shape(**{key: config[key] for key in config if key in fields}))
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
