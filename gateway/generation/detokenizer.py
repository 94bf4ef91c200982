"""The decoding of token ids to text, one token at a time, in whole characters only.

A character may be spread over several tokens, and some decoders treat the first token of a text
differently. Each token is therefore decoded together with the tokens before it, and only the added
text is returned. If the text of a token depends on no other token, the text is looked up instead.
`tokenizers.decoders.DecodeStream` is similar, but cannot return the text left at the end.
`DecodeStream` also holds any number of bytes that never become a character.
"""

from collections.abc import Mapping
from typing import Protocol

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# maximum number of tokens held back; a character has at most 4 bytes, so more tokens never become
# one character
_MAX_HELD = 16


class TokenDecoder(Protocol):
    """The tokenizer's methods that a detokenizer uses."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode `token_ids`, with U+FFFD for bytes that are no character."""
        ...

    def pieces(self, *, skip_special_tokens: bool) -> Mapping[int, str | None] | None:
        """Map each token to its text, or to None if the text depends on the token's neighbours.

        Returns None instead of the mapping if every token's text depends on its neighbours.
        """
        ...


class Detokenizer:
    """A decoder of one choice's tokens. The returned pieces join to the whole text."""

    def __init__(self, decoder: TokenDecoder, *, skip_special_tokens: bool) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._pieces = decoder.pieces(skip_special_tokens=skip_special_tokens)
        # last decoded tokens, decoded again as context of the next tokens
        self._shown: list[int] = []
        self._shown_text = ""
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes, which may be empty."""
        if self._pieces is not None and not self._held:
            piece = self._pieces[token_id]
            if piece is not None:
                self._shown, self._shown_text = [], ""
                return piece
        self._held.append(token_id)
        text = self._decode(self._shown + self._held)
        is_whole = len(text) > len(self._shown_text) and not text.endswith(_REPLACEMENT)
        if is_whole or len(self._held) >= _MAX_HELD:
            return self._show(text)
        return ""

    def flush(self) -> str:
        """Return the remaining text. An unfinished character becomes U+FFFD."""
        return self._show(self._decode(self._shown + self._held)) if self._held else ""

    def _show(self, text: str) -> str:
        piece = text[len(self._shown_text) :]
        self._shown, self._held = self._held, []
        self._shown_text = self._decode(self._shown)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
