"""The tokens that end an answer, from the files beside a model checkpoint.

    generation_config.json, or else config.json: one token id or several tokenizer_config.json: the
    text of a token, whose id is in the tokenizer's files

A fine-tuned model often ends its answers with the tokenizer's token, while the other files still
name the base model's token. Both tokens therefore end an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.models.config import read_json

TokenIdOrIds = int | list[int] | None


class _Text(msgspec.Struct):
    eos_token_id: TokenIdOrIds = None


class _Generation(msgspec.Struct):
    eos_token_id: TokenIdOrIds = None
    text_config: _Text | None = None


class _Added(msgspec.Struct):
    content: str
    id: int | None = None


class _TokenizerConfig(msgspec.Struct):
    eos_token: str | _Added | None = None
    added_tokens_decoder: dict[str, _Added] = {}


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Added] = []
    model: dict[str, Any] = {}


def eos_token_ids(model_dir: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of tokens that end an answer, each once.

    Ids that have no logit are left out, because they are never sampled; some files write -1 for no
    token. Raises BadConfig.
    """
    said = _of_tokenizer(model_dir)
    ids = [*_configured(model_dir), *([] if said is None else [said])]
    return tuple(dict.fromkeys(one for one in ids if 0 <= one < vocab_size))


def _configured(model_dir: Path) -> tuple[int, ...]:
    eos: TokenIdOrIds = None
    for name in ("generation_config.json", "config.json"):
        if eos is None and (model_dir / name).exists():
            read = read_json(model_dir / name, _Generation)
            inner = None if read.text_config is None else read.text_config.eos_token_id
            eos = inner if read.eos_token_id is None else read.eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _of_tokenizer(model_dir: Path) -> int | None:
    path = model_dir / "tokenizer_config.json"
    if not path.exists():
        return None
    config = read_json(path, _TokenizerConfig)
    said = config.eos_token
    text = said.content if isinstance(said, _Added) else said
    if text is None:
        return None
    for token_id, added in config.added_tokens_decoder.items():
        if added.content == text and token_id.isdecimal():
            return int(token_id)
    return _id_of(model_dir / "tokenizer.json", text)


def _id_of(path: Path, text: str) -> int | None:
    if not path.exists():
        return None
    tokenizer = read_json(path, _Tokenizer)
    for added in tokenizer.added_tokens:
        if added.content == text:
            return added.id
    vocabulary = tokenizer.model.get("vocab")
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None
