"""A tiny random Qwen3 with a tokenizer of bytes and the words "yes" and "no", saved as published.

Its chat template is Qwen3's own. The tokenizer of an embedding model appends `<|endoftext|>` to
each text. The files of an embedding model have only a decoder, without a head, and without `model.`
before the names of tensors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.prompts.tokens.token_bytes import byte_alphabet
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, make_checkpoint

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEMPLATE = Path(__file__).parents[2] / "gateway" / "templates" / "qwen3.jinja"


def small_tokenizer(*, appends: bool) -> Tokenizer:
    """Make a tokenizer of bytes and two words, for an embedding model if `appends`."""
    vocabulary = byte_alphabet()
    for word in ("ye", "yes", "no"):
        vocabulary[word] = len(vocabulary)
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*MARKS[:3]])
    tokenizer.add_tokens([*MARKS[3:]])
    if appends:
        end = tokenizer.token_to_id(MARKS[0])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {MARKS[0]}", special_tokens=[(MARKS[0], end)]
        )
    return tokenizer


def write_tokenizer(model_dir: Path, *, appends: bool) -> Tokenizer:
    """Write the files that a gateway needs to serve the model; return the tokenizer."""
    tokenizer = small_tokenizer(appends=appends)
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    texts = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE.read_text()}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(texts))
    return tokenizer


def write_small_qwen(model_dir: Path, *, embeds: bool) -> Checkpoint:
    """Write the directory of an embedding model (`embeds`) or of a generating model."""
    tokenizer = write_tokenizer(model_dir, appends=embeds)
    recipe = RECIPES["qwen3"]
    fields = {**recipe.fields, "max_position_embeddings": 4096, "tie_word_embeddings": not embeds}
    made = make_checkpoint(replace(recipe, fields=fields), model_dir)
    config = json.loads((model_dir / "config.json").read_text())
    if embeds:
        for file in model_dir.glob("*.safetensors"):
            file.unlink()
        made.truth.model.save_pretrained(model_dir)
    config |= {"eos_token_id": tokenizer.token_to_id("<|im_end|>"), "bos_token_id": None}
    (model_dir / "config.json").write_text(json.dumps(config))
    (model_dir / "generation_config.json").unlink(missing_ok=True)
    return made
