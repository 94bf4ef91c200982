"""A GGUF file as a model of `transformers`: its tensors in float32, its tokenizer and template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from cli.gguf.description import describe
from engine.models.gguf.tensors import GgufFile


def reference_model(gguf: Path, places: Path) -> Any:
    """Load the file's tensors into the class of `transformers`."""
    config = transformers.AutoConfig.from_pretrained(describe(gguf, places))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with GgufFile(gguf, torch.device("cpu")) as file:
        names = (name for name in model.state_dict() if name != "lm_head.weight")
        model.load_state_dict({name: file.get_tensor(name) for name in names}, strict=False)
    model.tie_weights()
    return model


def reference_tokenizer(gguf: Path, places: Path) -> Path:
    """Write the file's tokenizer and template for `transformers`, and return the directory."""
    described = describe(gguf, places)
    config = json.loads((described / "tokenizer_config.json").read_text())
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(described / "tokenizer.json"),
        **{name: config[name] for name in names if config.get(name)},
    )
    tokenizer.chat_template = config["chat_template"]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    place = places / "tokenizer"
    tokenizer.save_pretrained(place)
    return place
