from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from gateway.generation.detokenizer import Detokenizer
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.doubles.engine.tiny_model import BOS, EOS, byte_tokenizer

BYTES = Tokenizer(byte_tokenizer())


def sentencepiece_like() -> Tokenizer:
    """Make a tokenizer of bytes and of words, which begin with a mark in place of the space."""
    words = ["<unk>", "\u2581Hello", "\u2581world", "!", "\u2581"]
    vocabulary = {word: place for place, word in enumerate(words)}
    vocabulary |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(inner)


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_a_character_is_shown_when_it_is_whole() -> None:
    assert pieces(BYTES, list("é😀x".encode())) == ["", "é", "", "", "", "😀", "x", ""]


def test_a_character_that_is_never_finished_is_marked_at_the_end() -> None:
    assert pieces(BYTES, [*b"a", *"😀".encode()[:3]]) == ["a", "", "", "", "\ufffd"]


def test_a_replacement_character_that_was_meant_is_shown() -> None:
    assert "".join(pieces(BYTES, list("a\ufffdb".encode()))) == "a\ufffdb"


def test_what_never_becomes_a_character_is_not_held_for_ever() -> None:
    shown = pieces(BYTES, [0xFF] * 64)
    assert max(map(len, shown)) <= 16
    assert "".join(shown) == "\ufffd" * 64


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [BOS, *b"hi", EOS]
    assert "".join(pieces(BYTES, ids)) == "hi"
    assert "".join(pieces(BYTES, ids, skip=False)) == "<|bos|>hi<|eos|>"


def test_the_first_word_has_no_space_and_the_others_keep_theirs() -> None:
    tokenizer = sentencepiece_like()
    assert pieces(tokenizer, [1, 2, 3, 2]) == ["Hello", " world", "!", " world", ""]


def test_byte_fallback() -> None:
    tokenizer = sentencepiece_like()
    ids = [1, *(5 + byte for byte in "😀".encode()), 3]
    assert pieces(tokenizer, ids) == ["Hello", "", "", "", "😀", "!", ""]


@given(st.text(max_size=40))
def test_pieces_join_to_the_text(text: str) -> None:
    ids = list(text.encode())
    shown = pieces(BYTES, ids)
    assert "".join(shown) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)


@given(st.lists(st.sampled_from([*b"a\xc3\xa9\xf0\x9f\x98\x80", EOS]), max_size=15))
def test_pieces_join_to_the_decoded_tokens_even_when_they_are_no_text(ids: list[int]) -> None:
    whole = BYTES.decode(ids, skip_special_tokens=True)
    assert "".join(pieces(BYTES, ids)) == whole


@pytest.mark.parametrize("token", [0, 65, 0xC3, BOS])
def test_the_bytes_of_a_token(token: int) -> None:
    expected = b"<|bos|>" if token == BOS else bytes([token])
    assert BYTES.bytes_of(token) == expected


def test_the_bytes_of_tokens_with_byte_fallback() -> None:
    tokenizer = sentencepiece_like()
    assert tokenizer.bytes_of(2) == b" world"
    assert tokenizer.bytes_of(5 + 0xC3) == b"\xc3"
    assert tokenizer.bytes_of(99_999) == b""


class LooksAround:
    """A decoder that returns no text for a single token."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return self.inner.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, *, skip_special_tokens: bool) -> None:
        return None


@given(st.lists(st.integers(0, 260), max_size=40), st.booleans())
def test_looking_tokens_up_shows_the_text_that_decoding_does(ids: list[int], skip: bool) -> None:
    looked_up = "".join(pieces(BYTES, ids, skip=skip))
    around = Detokenizer(LooksAround(BYTES), skip_special_tokens=skip)
    assert looked_up == "".join([*map(around.push, ids), around.flush()])
    assert looked_up == BYTES.decode(ids, skip_special_tokens=skip)


def test_only_whole_characters_of_context_free_decoders_are_looked_up() -> None:
    found = BYTES.pieces(skip_special_tokens=True)
    assert found is not None
    assert (found[ord("a")], found[BOS], found[0xC3]) == ("a", "", None)
    assert sentencepiece_like().pieces(skip_special_tokens=True) is None
