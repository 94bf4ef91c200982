"""A model directory without a model: a tokenizer of single bytes and a small chat template.

Token ids 0 to 255 are the bytes themselves, 256 is `<|bos|>`, 257 `<|eos|>`, 258 `<|turn|>`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.tokenizer import byte_alphabet

BOS, EOS, TURN = 256, 257, 258
TEMPLATE = """\
{{ bos_token }}
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}{{ raise_exception("no tools here") }}{% endif %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|turn|>assistant:" }}{% endif %}"""


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges, which puts `<|bos|>` before a text."""
    vocabulary = byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|turn|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
    )
    return tokenizer


def write_tiny_model(directory: Path, template: str | None = TEMPLATE) -> Path:
    """Write the directory's files; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"}}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    return directory
