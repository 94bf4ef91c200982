"""The decoding of token ids to text without special tokens, except the markers of calls.

Elsewhere: what a marker means (`gateway/turn_formats`).
"""

from collections.abc import Mapping
from itertools import groupby

from gateway.prompts.tokens.tokenizer import Tokenizer


class MarkerDecoder:
    """A decoder that shows the special tokens in `markers` (texts by id). Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, markers: Mapping[int, str]) -> None:
        self._tokenizer = tokenizer
        self._markers = markers
        pieces = tokenizer.pieces(skip_special_tokens=True)
        self._pieces = None if pieces is None else _Pieces(markers, pieces)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode `token_ids`. U+FFFD stands for bytes that are no character."""
        if not skip_special_tokens:
            return self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return "".join(
            self._tokenizer.decode(list(some), skip_special_tokens=marker is None)
            for marker, some in groupby(token_ids, self._markers.get)
        )

    def pieces(self, *, skip_special_tokens: bool) -> Mapping[int, str | None] | None:
        """Map tokens that are whole characters to their text, and other tokens to None."""
        return (
            self._pieces
            if skip_special_tokens
            else self._tokenizer.pieces(skip_special_tokens=False)
        )


class _Pieces(dict[int, str | None]):
    def __init__(self, markers: Mapping[int, str], pieces: Mapping[int, str | None]) -> None:
        super().__init__(markers)
        self._others = pieces

    def __missing__(self, token_id: int) -> str | None:
        return self._others[token_id]
