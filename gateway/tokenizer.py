"""The model's tokenizer: text to token ids, token ids to text and to bytes.

Knows: a Hugging Face directory's tokenizer.json and tokenizer_config.json. Does not know: chat
templates (`chat_template.py`) or requests. Methods are safe to call from several threads; long
texts are slow, so `admission.py` calls from a pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import tokenizers

TokenIds = npt.NDArray[np.int32]

_BYTE_TOKEN_LENGTH = len("<0x00>")


class ModelFileBroken(ValueError):
    """A file of the model's directory cannot be used: the model cannot be served as it is."""


class _Part(msgspec.Struct):
    type: str = ""
    decoders: list[_Part] = []


class _TokenizerFile(msgspec.Struct):
    decoder: _Part | None = None


class Pieces(dict[int, str | None]):
    """Token id to its text, or None if that depends on its neighbours. Filled on demand."""

    def __init__(self, inner: tokenizers.Tokenizer, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._inner = inner
        self._skip_special_tokens = skip_special_tokens

    def __missing__(self, token_id: int) -> str | None:
        text = self._inner.decode([token_id], skip_special_tokens=self._skip_special_tokens)
        piece = None if "\N{REPLACEMENT CHARACTER}" in text else text
        self[token_id] = piece
        return piece


class Tokenizer:
    """A loaded tokenizer."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        decoder = _decoder_of(inner)
        self._byte_of = byte_alphabet() if "ByteLevel" in _types(decoder) else None
        # A byte-level token is the same bytes in any context; other decoders look at neighbours.
        self._has_pieces = decoder.type == "ByteLevel"
        self._pieces = {skip: Pieces(inner, skip_special_tokens=skip) for skip in (False, True)}
        self.vocab_size = inner.get_vocab_size(with_added_tokens=True)
        self.longest_token = max(map(len, inner.get_vocab(with_added_tokens=True)), default=1)

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read `tokenizer.json`; ModelFileBroken when it is not there or not good."""
        path = model_dir / "tokenizer.json"
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileBroken(f"{path}: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(source)
        except Exception as error:  # the library raises nothing narrower
            raise ModelFileBroken(f"{path}: {error}") from error
        return cls(inner)

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """int32 token ids of `text`; special tokens (BOS) in front of it as the model wants."""
        # As `encode`, without the offsets of tokens in the text: half the time for a short one.
        [encoding] = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of `token_ids`; U+FFFD for bytes that are no character."""
        return self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, *, skip_special_tokens: bool) -> Pieces | None:
        """The text of each token that is whole characters; None if they need their neighbours."""
        return self._pieces[skip_special_tokens] if self._has_pieces else None

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes one token stands for, which need not be whole characters."""
        token = self._added.get(token_id)
        if token is not None:
            return token.encode()
        token = self._inner.id_to_token(token_id) or ""
        if self._byte_of is not None:
            return bytes(self._byte_of[char] for char in token if char in self._byte_of)
        if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _decoder_of(inner: tokenizers.Tokenizer) -> _Part:
    """How tokens become text; the file says it, the API does not."""
    return msgspec.json.decode(inner.to_str(), type=_TokenizerFile).decoder or _Part()


def _types(decoder: _Part) -> tuple[str, ...]:
    return (decoder.type, *(part.type for part in decoder.decoders))


def byte_alphabet() -> dict[str, int]:
    """Which byte each character of the byte-level alphabet stands for.

    Printable bytes stand for themselves, the others are numbered from U+0100 in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def special_tokens(model_dir: Path) -> dict[str, str]:
    """The named special tokens (`bos_token` ...) of tokenizer_config.json, which templates use."""
    config = read_tokenizer_config(model_dir)
    named = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named


def read_tokenizer_config(model_dir: Path) -> dict[str, Any]:
    """tokenizer_config.json as it is; empty when there is none. ModelFileBroken for no JSON."""
    path = model_dir / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise ModelFileBroken(f"{path}: {error}") from error
