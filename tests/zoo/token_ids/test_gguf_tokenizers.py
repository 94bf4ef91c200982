"""A tokenizer made from a GGUF file's fields gives the same ids as the original tokenizer.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from cli.gguf.tokenizer import read_tokenizer
from engine.models.gguf.header import GgufHeader
from tests.zoo.families import TOKENIZERS
from tests.zoo.texts import texts

_CUTS = {
    "qwen2.5": "qwen2",
    "qwen3": "qwen2",
    "llama3": "llama-bpe",
    "mistral-nemo": "tekken",
    "gpt-oss": "gpt-4o",
}
_CHARACTERS = ("mistral-7b", "gemma3")
_BLANKS = "".join(f"x{' ' * count}y\n" for count in range(1, 70))
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def fields_of(name: str) -> dict[str, Any]:
    """Return the fields that llama.cpp's converter writes for a tokenizer.json."""
    path = TOKENIZERS[name].directory / "tokenizer.json"
    read = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = dict(read["model"]["vocab"])
    kinds = {text: _BYTE if _is_byte(text) else _NORMAL for text in vocabulary}
    for mark in read["added_tokens"]:
        vocabulary[mark["content"]] = mark["id"]
        kinds[mark["content"]] = _CONTROL if mark["special"] else _USER_DEFINED
    if unknown := read["model"].get("unk_token"):
        kinds[unknown] = _UNKNOWN
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    fields = {"tokens": tokens, "token_type": [kinds[token] for token in tokens]}
    if name in _CUTS:
        fields |= {"model": "gpt2", "pre": _CUTS[name]}
        fields["merges"] = [_joined(merge) for merge in read["model"]["merges"]]
    else:
        ranks = {"".join(_pair(merge)): rank for rank, merge in enumerate(read["model"]["merges"])}
        fields |= {"model": "llama", "add_space_prefix": name != "gemma3"}
        if name != "gemma3":  # in Llama's and Mistral's models pieces of blanks score worst
            ranks |= {token: 10**9 for token in tokens if set(token) == {"▁"}}
        fields["scores"] = [-float(ranks.get(token, len(ranks))) for token in tokens]
    return {f"tokenizer.ggml.{field}": value for field, value in fields.items()}


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x")


def _pair(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _joined(merge: str | list[str]) -> str:
    return " ".join(_pair(merge))


# The other tokenizers take seconds each.
_QUICK = ("qwen3", "mistral-7b")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _QUICK else pytest.mark.zoo)
        for name in (*_CUTS, *_CHARACTERS)
    ],
)
def test_texts_have_the_same_ids(name: str) -> None:
    directory = TOKENIZERS[name].directory
    own = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    fields = fields_of(name)
    made = read_tokenizer(GgufHeader(fields, {}))
    marks = [
        token
        for token, kind in zip(
            fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True
        )
        if kind == _CONTROL
    ][:3]
    for text in [*texts().values(), _BLANKS, "".join(f"{mark}one {mark}\n" for mark in marks)]:
        wanted = own.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special_tokens=False).ids == wanted
        assert made.decode(wanted, skip_special_tokens=False) == own.decode(
            wanted, skip_special_tokens=False
        )


@pytest.mark.zoo
def test_another_cut_would_give_other_ids() -> None:
    """Split texts in another way (positive control): the ids differ."""
    fields = fields_of("llama3") | {"tokenizer.ggml.pre": "tekken"}
    made = read_tokenizer(GgufHeader(fields, {}))
    own = read_tokenizer(GgufHeader(fields_of("llama3"), {}))
    assert any(made.encode(text).ids != own.encode(text).ids for text in texts().values())
