"""The bytes that each token stands for in decoded text.

Most tokens are whole characters. The text of such a token is the text that the decoder adds for it
after another token. This holds for each way in which tokenizers write spaces. Other tokens are
bytes, in the alphabet of a byte-level tokenizer or spelled like `<0x0A>`.
"""

import re
from functools import cached_property

import tokenizers

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's spelling of a space
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TokenBytes:
    """The bytes of one tokenizer's tokens. Thread-safe."""

    def __init__(self, inner: tokenizers.Tokenizer, *, is_byte_level: bool) -> None:
        self._inner = inner
        self._byte_of = byte_alphabet() if is_byte_level else None
        self._found: dict[int, bytes] = {}

    def next(self, token_id: int) -> bytes:
        """Return the bytes of a token that follows another token; b"" if no token has this id."""
        found = self._found.get(token_id)
        if found is None:
            before, text = self._before
            behind = self._decoded([before, token_id]).removeprefix(text)
            found = self._found[token_id] = self._spelled(token_id, behind)
        return found

    def first(self, token_id: int) -> bytes:
        """Return the bytes of the first token of a text."""
        return self._spelled(token_id, self._decoded([token_id]))

    def _spelled(self, token_id: int, text: str) -> bytes:
        if _BROKEN not in text:
            return text.encode()
        token = self._inner.id_to_token(token_id) or ""
        byte = _BYTE.fullmatch(token)
        if byte is not None:
            return bytes.fromhex(byte[1])
        if self._byte_of is None or any(char not in self._byte_of for char in token):
            return token.replace(_SPACE, " ").encode()
        return bytes(self._byte_of[char] for char in token)

    @cached_property
    def _before(self) -> tuple[int, str]:
        """The id and text of a one-character token, after which other tokens are decoded."""
        size = self._inner.get_vocab_size(with_added_tokens=True)
        for token_id in range(size):
            text = self._decoded([token_id])
            if text.isalnum() and self._decoded([token_id, token_id]) == 2 * text:
                return token_id, text
        return 0, ""

    def _decoded(self, token_ids: list[int]) -> str:
        return self._inner.decode(token_ids, skip_special_tokens=False)


def byte_alphabet() -> dict[str, int]:
    """Map each character of the byte-level alphabet to the byte that it stands for.

    Printable bytes stand for themselves. The others are numbered from U+0100 in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(others)}
