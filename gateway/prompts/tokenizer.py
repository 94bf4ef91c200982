"""The model's tokenizer: text to token ids, token ids to text and to bytes.

In a text, control tokens are text as everything else is, unless the operator says otherwise
(`parse_special`); in a rendered chat, those are tokens that the template wrote. The tokenizer of
the model finds control tokens wherever a text has them. So for these texts there is another one
(`TextTokenizer`), with the same model, normaliser and rules. It knows its control tokens under
names of its own, which cannot be guessed: what a user wrote is text, and what the template wrote is
put in by these names.

Methods are safe to call from several threads; long texts are slow, so `admission.py` calls from a
pool.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from gateway.prompts.control_tokens import ControlTokens, Rendered
from prefix_cache.hashing import TokenIds as TokenIds

_NORMALIZED = 3  # times as many bytes may come before a normalizer as after it
_BYTE_TOKEN_LENGTH = len("<0x00>")

_LOG = logging.getLogger(__name__)


class ModelFileBroken(ValueError):
    """A file of the model's directory cannot be used: the model cannot be served as it is."""


class _Decoder(msgspec.Struct):
    type: str = ""
    decoders: list[_Decoder] = []


class _Model(msgspec.Struct):
    type: str = ""
    dropout: float | None = None


class _Added(msgspec.Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class Pipeline(msgspec.Struct):
    """How a tokenizer works, as `tokenizer.json` says it; the library's API does not."""

    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    model: _Model
    decoder: _Decoder | None
    added_tokens: list[_Added] = []


class TokenPieces(dict[int, str | None]):
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

    def __init__(self, inner: tokenizers.Tokenizer, *, parse_special: bool = False) -> None:
        """With `parse_special`, a text's control tokens are these tokens."""
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._parse_special = parse_special
        added = inner.get_added_tokens_decoder()
        self.control = ControlTokens({token.content: token.special for token in added.values()})
        self._text = TextTokenizer(inner, self.control)
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.pipeline = msgspec.json.decode(inner.to_str(), type=Pipeline)
        decoder = self.pipeline.decoder or _Decoder()
        types = {decoder.type, *(part.type for part in decoder.decoders)}
        self._byte_of = byte_alphabet() if "ByteLevel" in types else None
        # A byte-level token is the same bytes in any context; other decoders look at neighbours.
        self._has_pieces = decoder.type == "ByteLevel"
        self._pieces = {
            skip: TokenPieces(inner, skip_special_tokens=skip) for skip in (False, True)
        }
        self.vocab_size = inner.get_vocab_size(with_added_tokens=True)
        self.longest_token = self._longest_token()

    def special_ids(self, texts: Collection[str]) -> dict[int, str]:
        """By id, those of `texts` that are special tokens: plain decoding leaves them out."""
        hidden = (one for one in self._added.items() if one[1] in texts)
        return {
            token_id: text
            for token_id, text in hidden
            if not self._inner.decode([token_id], skip_special_tokens=True)
        }

    def control_ids(self) -> dict[int, str]:
        """The texts, by id, of all control tokens."""
        return {i: text for i, text in self._added.items() if text in self.control.tokens}

    def grammar_tokens(self) -> dict[str, int]:
        """The ids, by text, of tokens that a grammar must name: special, or in angle brackets."""
        added = self._inner.get_added_tokens_decoder().items()
        return {
            token.content: token_id
            for token_id, token in added
            if token.special or (token.content.startswith("<") and token.content.endswith(">"))
        }

    def _longest_token(self) -> int:
        """The most bytes of UTF-8 that one token can stand for."""
        vocab = self._inner.get_vocab(with_added_tokens=True)
        # Of a byte-level token every character is a byte.
        plain = max(len(token if self._byte_of else token.encode()) for token in [*vocab, ""])
        longest = max(plain, *(len(token.encode()) for token in self._added.values()), 1)
        return longest if self._inner.normalizer is None else _NORMALIZED * longest

    @classmethod
    def load(cls, model_dir: Path, *, parse_special: bool = False) -> Tokenizer:
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
        loaded = cls(inner, parse_special=parse_special)
        for token in loaded._text.inseparable():
            _LOG.warning("the model's tokenizer makes a control token of the text %s", token)
        return loaded

    def encode(self, prompt: str | Rendered, *, add_special_tokens: bool) -> TokenIds:
        """int32 token ids of `prompt`; special tokens (BOS) in front of it as the model wants."""
        if isinstance(prompt, Rendered):
            return self._text.encode(prompt, add_special_tokens=add_special_tokens)
        if not self._parse_special:
            return self._text.encode(Rendered((prompt,)), add_special_tokens=add_special_tokens)
        # As `encode`, without the offsets of tokens in the text: half the time for a short one.
        [encoding] = self._inner.encode_batch_fast([prompt], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of `token_ids`; U+FFFD for bytes that are no character."""
        return self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, *, skip_special_tokens: bool) -> TokenPieces | None:
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


def byte_alphabet() -> dict[str, int]:
    """Which byte each character of the byte-level alphabet stands for.

    Printable bytes stand for themselves, the others are numbered from U+0100 in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}


class TextTokenizer:
    """Shares the model with `inner`, so it takes little memory. Safe to call from threads."""

    def __init__(self, inner: tokenizers.Tokenizer, control: ControlTokens) -> None:
        self._inner = _bare(inner)
        nonce = secrets.token_hex(16)
        added = inner.get_added_tokens_decoder()
        names = {token_id: f"{nonce}-{token_id}-" for token_id in added}
        self._names = {
            added[i].content: names[i] for i in added if added[i].content in control.tokens
        }
        unused = _unused_ids(inner, nonce)
        self._inner.add_tokens(unused)
        self._inner.add_tokens(
            [_named(token, self._names.get(token.content)) for token in added.values()]
        )
        self._ids = self._real_ids(inner)

    def encode(self, prompt: Rendered, *, add_special_tokens: bool) -> TokenIds:
        """int32 token ids; with `add_special_tokens`, BOS in front of it as the model wants."""
        text = "".join(
            self._names[piece] if place % 2 else piece for place, piece in enumerate(prompt.pieces)
        )
        # As `encode`, without the offsets of tokens in the text: half the time for a short one.
        [encoding] = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return self._ids[np.array(encoding.ids, dtype=np.int32)]

    def inseparable(self) -> list[str]:
        """Control tokens that the model makes of their text even so."""
        real = {int(self._ids[self._id_of(name)]): token for token, name in self._names.items()}
        found = {
            int(token_id)
            for token in self._names
            for token_id in self.encode(Rendered((token,)), add_special_tokens=False)
        }
        return sorted(real[token_id] for token_id in found & real.keys())

    def _id_of(self, name: str) -> int:
        token_id = self._inner.token_to_id(name)
        if token_id is None:
            raise RuntimeError("a token that was added has no id")
        return token_id

    def _real_ids(self, inner: tokenizers.Tokenizer) -> TokenIds:
        """By id of this tokenizer, the model's own."""
        ids = np.arange(1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=0))
        for token_id, token in inner.get_added_tokens_decoder().items():
            ids[self._id_of(self._names.get(token.content, token.content))] = token_id
        return ids.astype(np.int32)


def _bare(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """`inner` without its added tokens."""
    bare = tokenizers.Tokenizer(inner.model)
    if inner.normalizer is not None:
        bare.normalizer = inner.normalizer
    if inner.pre_tokenizer is not None:
        bare.pre_tokenizer = inner.pre_tokenizer
    if inner.post_processor is not None:
        bare.post_processor = inner.post_processor
    return bare


def _unused_ids(inner: tokenizers.Tokenizer, nonce: str) -> list[tokenizers.AddedToken]:
    """Tokens that take all ids of the model which are free, so that no name is given one."""
    highest = max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
    free = highest + 1 - inner.get_vocab_size(with_added_tokens=False)
    return [tokenizers.AddedToken(f"{nonce}+{n}+", normalized=False) for n in range(free)]


def _named(token: tokenizers.AddedToken, name: str | None) -> tokenizers.AddedToken:
    if name is None:
        return token
    return tokenizers.AddedToken(
        name,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
