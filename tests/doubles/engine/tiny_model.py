"""A model directory without weights: a tokenizer of single bytes and a small chat template.

If there is also a config, an engine can run the model with `--load-format dummy`.

Token ids 0 to 255 are the bytes themselves, 256 is `<|bos|>`, 257 `<|eos|>`, 258 `<|turn|>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gateway.prompts.tokens.token_bytes import byte_alphabet

BOS, EOS, TURN = 256, 257, 258
TEMPLATE = """\
{{ bos_token }}
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{%- if message.content == "REFUSED" %}{{ raise_exception("not this") }}{% endif %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|turn|>assistant:" }}{% endif %}"""

RUNNABLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}
# For tests of whole servers in which the computed values do not matter.
ONE_LAYER = RUNNABLE | {"num_hidden_layers": 1}
# A model that also has recurrent layers.
HYBRID: dict[str, Any] = RUNNABLE | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "tie_word_embeddings": True,
}


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer without merges that puts `<|bos|>` before a text."""
    vocabulary = byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|turn|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
    )
    return tokenizer


def write_tiny_model(
    directory: Path,
    template: str | None = TEMPLATE,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the directory's files, with `config` if it is given; return `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    texts = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"}}
    if template is not None:
        texts["chat_template"] = template
    (directory / "tokenizer_config.json").write_bytes(msgspec.json.encode(texts))
    if config is not None:
        (directory / "config.json").write_bytes(msgspec.json.encode(config))
    return directory
