"""Remembered tokens equal those of the whole text, are found only for their owner, and save
work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Bounds
from gateway.processes.fair_executor import at_once
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.long_text import KNOWN_CHUNK, LongTexts
from gateway.prompts.tokens.text_memory import KnownText, Owner, TextMemory, key_of
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from tests.gateway.prompts.tokens.test_long_text import PIECES, TOKENIZERS
from tests.gateway.support.manual_clock import ManualClock

ADA, BOB = Owner("ada", b"one"), Owner("bob", b"one")
SALTED = Owner("ada", b"two")
HANDBOOK = Path(__file__).parents[4] / "handbook" / "model"
SYSTEM = " ".join(f"The support code for Berlin {n} is {4821 + n}." for n in range(200))
turns = st.lists(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join), min_size=1, max_size=6
)


class CountedTokenizer(Tokenizer):
    """A tokenizer that counts the characters of its texts."""

    characters = 0

    def encode(self, prompt: str | Rendered, *, add_special_tokens: bool) -> TokenIds:
        self.characters += len(prompt)
        return super().encode(prompt, add_special_tokens=add_special_tokens)


@pytest.fixture
def tokenizer() -> CountedTokenizer:
    return CountedTokenizer(tokenizers.Tokenizer.from_file(str(HANDBOOK / "tokenizer.json")))


def memory_of(**bounds: Any) -> TextMemory:
    return TextMemory(Bounds(**bounds), ManualClock())


def ids_of(
    texts: LongTexts, text: str | Rendered, owner: Owner = ADA, *, goes_on: bool = False
) -> list[int]:
    steps = texts.encode(text, add_special_tokens=False, most=1 << 30, owner=owner, goes_on=goes_on)
    ids = at_once(steps)
    assert ids is not None
    return list(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(said=turns, size=st.integers(1, 30), is_chat=st.booleans(), goes_on=st.booleans())
def test_a_conversation_that_grows_has_the_ids_of_its_whole_text(
    name: str, said: list[str], size: int, is_chat: bool, goes_on: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    texts = LongTexts(tokenizer, memory_of(), chunk=size)
    assert texts.can_cut
    for end in (*range(1, len(said) + 1), len(said)):
        plain = "".join(said[:end])
        text = tokenizer.control.split(plain) if is_chat else plain
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert ids_of(texts, text, goes_on=goes_on) == whole.tolist()


def test_only_what_is_new_is_tokenised(tokenizer: CountedTokenizer) -> None:
    texts = LongTexts(tokenizer, memory_of())
    tokenizer.characters = 0
    ids_of(texts, SYSTEM)
    assert tokenizer.characters == len(SYSTEM)  # positive control: at first nothing was remembered
    more = SYSTEM + "And the door code?"
    tokenizer.characters = 0
    ids_of(texts, more)
    assert 0 < tokenizer.characters <= 2 * KNOWN_CHUNK


@pytest.mark.parametrize("other", [BOB, SALTED])
def test_nobody_else_finds_them(tokenizer: CountedTokenizer, other: Owner) -> None:
    texts = LongTexts(tokenizer, memory_of())
    ids_of(texts, SYSTEM, ADA)
    for owner, is_known in ((other, False), (ADA, True)):
        tokenizer.characters = 0
        ids_of(texts, SYSTEM, owner)
        assert (tokenizer.characters < len(SYSTEM)) == is_known


def test_the_end_of_a_text_is_kept_only_where_given_tokens_follow(
    tokenizer: CountedTokenizer,
) -> None:
    for goes_on, kept in ((False, 0), (True, 1)):
        memory = memory_of()
        ids_of(LongTexts(tokenizer, memory), "What is the code?", goes_on=goes_on)
        assert len(memory.latest("ada", 9)) == kept


def test_a_flush_and_a_bound_drop_them(tokenizer: CountedTokenizer) -> None:
    memory = memory_of(max_tenant_text_bytes=8192)
    ids_of(LongTexts(tokenizer, memory), SYSTEM)
    assert 0 < memory.size <= 8192
    memory.forget("ada")
    assert memory.size == 0


@pytest.mark.parametrize("off", [{"max_tenant_text_bytes": 0}, {"turn_life_s": 0}])
def test_it_can_be_turned_off(tokenizer: CountedTokenizer, off: dict[str, int]) -> None:
    memory = memory_of(**off)
    whole = tokenizer.encode(SYSTEM, add_special_tokens=False)
    assert ids_of(LongTexts(tokenizer, memory), SYSTEM) == whole.tolist()
    assert memory.size == 0


def test_keys_tell_apart_what_could_be_joined_alike() -> None:
    texts: list[str | Rendered] = [
        Rendered(("a", "b", "c")), Rendered(("ab", "", "c")), Rendered(("abc",)), "ab", "a",
    ]  # fmt: skip
    keys = {key_of(b"n", text, special=special) for text in texts for special in (False, True)}
    assert len(keys) == 2 * len(texts)
    assert key_of(b"n", "abc", special=False) == key_of(b"n", Rendered(("abc",)), special=False)


def test_its_size_is_that_of_the_ids() -> None:
    assert KnownText(np.zeros(100, np.int32)).size == 400
