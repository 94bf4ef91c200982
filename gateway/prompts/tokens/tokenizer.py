"""The model's tokenizer: text to token ids, token ids to text and to bytes.

A control token in a plain text is text, unless the operator sets `parse_special`. In a rendered
chat, only the control tokens that the template wrote become tokens. The model's tokenizer would
find control tokens in both kinds of text. A `TextTokenizer` therefore tokenises them. A
`TextTokenizer` has the same vocabulary, merges and normaliser, but knows each control token only by
a random name. The template's control tokens are written as these names, and a user cannot guess
them.

Methods are thread-safe. A long text takes long, so `admission.py` tokenises in a pool of threads.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from engine.models.model_files import read_text
from engine.models.token_marks import NO_MARKS, TokenMarks, is_in_angles, read_token_marks
from engine.models.token_marks import ModelFileBroken as ModelFileBroken
from gateway.prompts.tokens.control_tokens import ControlTokens, Rendered
from gateway.prompts.tokens.token_bytes import TokenBytes
from prefix_cache.hashing import TokenIds as TokenIds

_NORMALIZED = 3  # maximum factor by which a normalizer may shrink a text's bytes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of a tokenizer, as `tokenizer.json` describes them."""

    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    decoder: dict[str, Any] | None
    is_plain_bpe: bool
    added_tokens: tuple[tokenizers.AddedToken, ...]

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer) -> Pipeline:
        """Read the parts of a loaded tokenizer, without a copy of its vocabulary."""
        model = inner.model
        return cls(
            normalizer=_as_json(inner.normalizer),
            pre_tokenizer=_as_json(inner.pre_tokenizer),
            decoder=_as_json(inner.decoder),
            is_plain_bpe=isinstance(model, tokenizers.models.BPE) and not model.dropout,
            added_tokens=tuple(inner.get_added_tokens_decoder().values()),
        )

    @property
    def decoders(self) -> list[str | None]:
        """The types of the decoder and of its parts."""
        whole = self.decoder or {}
        return [part.get("type") for part in (whole, *whole.get("decoders", ()))]


def _as_json(part: Any) -> dict[str, Any] | None:
    return None if part is None else msgspec.json.decode(part.__getstate__(), type=dict[str, Any])


class TokenPieces(dict[int, str | None]):
    """The text of each token id, or None if the text depends on neighbouring tokens.

    Entries are added when they are read.
    """

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

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        parse_special: bool = False,
        marks: TokenMarks = NO_MARKS,
    ) -> None:
        """Wrap `inner`. With `parse_special`, control tokens in a plain text become token ids."""
        inner.no_truncation()
        inner.no_padding()
        _keep_no_words(inner.model)
        self._inner = inner
        self._parse_special = parse_special
        added = inner.get_added_tokens_decoder()
        named = marks.with_texts(added[i].content for i in marks.ids & added.keys())
        self.control = ControlTokens(
            {token.content: token.special for token in added.values()}, named
        )
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self._text = TextTokenizer(inner, self.control, max(vocabulary.values(), default=-1))
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.pipeline = Pipeline.of(inner)
        decoders = self.pipeline.decoders
        is_byte_level = "ByteLevel" in decoders
        self._bytes = TokenBytes(inner, is_byte_level=is_byte_level)
        # A byte-level token has the same bytes in any context. Other decoders look at neighbours.
        self._has_pieces = decoders[0] == "ByteLevel"
        self._pieces = {
            skip: TokenPieces(inner, skip_special_tokens=skip) for skip in (False, True)
        }
        self.vocab_size = inner.get_vocab_size(with_added_tokens=True)
        self.longest_token = self._longest_token(vocabulary, is_byte_level=is_byte_level)

    def special_ids(self, texts: Collection[str]) -> dict[int, str]:
        """Map ids to texts, for the `texts` that are special tokens. Plain decoding omits them."""
        hidden = (one for one in self._added.items() if one[1] in texts)
        return {
            token_id: text
            for token_id, text in hidden
            if not self._inner.decode([token_id], skip_special_tokens=True)
        }

    def control_ids(self) -> dict[int, str]:
        """Map the ids of all control tokens to their texts."""
        return {i: text for i, text in self._added.items() if text in self.control.tokens}

    def grammar_tokens(self) -> dict[str, int]:
        """Map texts to ids, for the tokens that a grammar must name.

        The result has the special tokens, and the other control tokens in angle brackets
        (`engine/grammars/vocabulary.py`).
        """
        added = self._inner.get_added_tokens_decoder().items()
        return {
            token.content: token_id
            for token_id, token in added
            if token.special
            or (token.content in self.control.tokens and is_in_angles(token.content))
        }

    def _longest_token(self, vocabulary: Iterable[str], *, is_byte_level: bool) -> int:
        """Return the maximum number of bytes of UTF-8 that one token can stand for."""
        # Every character of a byte-level token is a byte.
        plain = max(len(token if is_byte_level else token.encode()) for token in [*vocabulary, ""])
        longest = max(plain, *(len(token.encode()) for token in self._added.values()), 1)
        return longest if self._inner.normalizer is None else _NORMALIZED * longest

    @classmethod
    def load(
        cls, model_dir: Path, *, parse_special: bool = False, template: Path | None = None
    ) -> Tokenizer:
        """Load a model's tokenizer and its token settings; raise ModelFileBroken for bad files.

        `template` is the path of the operator's chat template.
        """
        path = model_dir / "tokenizer.json"
        try:
            source = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileBroken(f"{path}: {error}") from error
        try:
            inner = tokenizers.Tokenizer.from_str(source)
        except Exception as error:  # the library raises no narrower error
            raise ModelFileBroken(f"{path}: {error}") from error
        loaded = cls(
            inner, parse_special=parse_special, marks=read_token_marks(model_dir, template)
        )
        for token in loaded._text.inseparable():
            _LOG.warning("the model's tokenizer makes a control token of the text %s", token)
        return loaded

    def encode(self, prompt: str | Rendered, *, add_special_tokens: bool) -> TokenIds:
        """Encode `prompt` to int32 ids, optionally after the model's special tokens (BOS)."""
        if isinstance(prompt, Rendered):
            return self._text.encode(prompt, add_special_tokens=add_special_tokens)
        if not self._parse_special:
            return self._text.encode(Rendered((prompt,)), add_special_tokens=add_special_tokens)
        # The fast variant makes no token offsets, which halves the time for a short text.
        [encoding] = self._inner.encode_batch_fast([prompt], add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode `token_ids`. U+FFFD stands for bytes that are no character."""
        return self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, *, skip_special_tokens: bool) -> TokenPieces | None:
        """Map tokens that are whole characters to their text, and other tokens to None."""
        return self._pieces[skip_special_tokens] if self._has_pieces else None

    def bytes_of(self, token_id: int, *, first: bool = False) -> bytes:
        """Return the bytes that a token stands for, which need not be whole characters.

        With `first` the token is a text's first token. Some decoders remove a space from it.
        """
        return self._bytes.first(token_id) if first else self._bytes.next(token_id)


class TextTokenizer:
    """A tokenizer for plain texts, which shares the model of `inner`. Thread-safe."""

    def __init__(
        self, inner: tokenizers.Tokenizer, control: ControlTokens, highest_id: int
    ) -> None:
        self._inner = _bare(inner)
        nonce = secrets.token_hex(16)
        added = inner.get_added_tokens_decoder()
        names = {token_id: f"{nonce}-{token_id}-" for token_id in added}
        self._names = {
            added[i].content: names[i] for i in added if added[i].content in control.tokens
        }
        free = highest_id + 1 - inner.get_vocab_size(with_added_tokens=False)
        self._inner.add_tokens(_unused(free, nonce))
        self._inner.add_tokens(
            [_named(token, self._names.get(token.content)) for token in added.values()]
        )
        self._ids = self._real_ids(inner, highest_id)

    def encode(self, prompt: Rendered, *, add_special_tokens: bool) -> TokenIds:
        """Encode to int32 ids. With `add_special_tokens`, the model's BOS comes first."""
        text = "".join(
            self._names[piece] if place % 2 else piece for place, piece in enumerate(prompt.pieces)
        )
        # The fast variant makes no token offsets, which halves the time for a short text.
        [encoding] = self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return self._ids[np.array(encoding.ids, dtype=np.int32)]

    def inseparable(self) -> list[str]:
        """List control tokens whose plain text the model still encodes as these tokens."""
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

    def _real_ids(self, inner: tokenizers.Tokenizer, highest_id: int) -> TokenIds:
        added = inner.get_added_tokens_decoder().items()
        real = {self._id_of(self._names.get(one.content, one.content)): i for i, one in added}
        ids = np.arange(1 + max(highest_id, *real, 0), dtype=np.int32)
        ids[list(real.keys())] = list(real.values())
        return ids


def _bare(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    bare = tokenizers.Tokenizer(inner.model)
    if inner.normalizer is not None:
        bare.normalizer = inner.normalizer
    if inner.pre_tokenizer is not None:
        bare.pre_tokenizer = inner.pre_tokenizer
    if inner.post_processor is not None:
        bare.post_processor = inner.post_processor
    return bare


def _keep_no_words(model: tokenizers.models.Model) -> None:
    """Switch off the library's cache of words.

    The cache would keep the first 10,000 words of all tenants. The time of a text would then reveal
    these words. Without the cache, encoding is as fast.
    """
    if isinstance(model, tokenizers.models.BPE | tokenizers.models.Unigram):
        model._resize_cache(0)


def _unused(free: int, nonce: str) -> list[tokenizers.AddedToken]:
    """Make tokens that take all free ids of the model, so that no random name gets one."""
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
