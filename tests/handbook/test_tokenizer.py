from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from handbook.texts.cases import draw_cases
from handbook.texts.handbooks import make_handbook, make_messages, make_questions
from tests.handbook.rendering import render

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(shipped_tokenizer: Tokenizer, text: str) -> None:
    ids = shipped_tokenizer.encode(text).ids
    if not any(special in text for special in SPECIAL_TOKENS):
        assert shipped_tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "text",
    ["Grüße 🎉👩‍👩‍👧 日本語", "  two  spaces\n\n\tand a tab ", "\x00\ufffe", "it's 3.14", ""],
)
def test_odd_text_survives(shipped_tokenizer: Tokenizer, text: str) -> None:
    assert shipped_tokenizer.decode(shipped_tokenizer.encode(text).ids) == text


def test_digits_are_split_one_by_one(shipped_tokenizer: Tokenizer) -> None:
    assert shipped_tokenizer.encode("4821").tokens == ["4", "8", "2", "1"]


@pytest.mark.parametrize("name", ["Berlin", "Ingrid Dahl", "4821", "Zürich", "Vantor Logistics"])
def test_a_name_is_the_same_tokens_wherever_it_stands(
    shipped_tokenizer: Tokenizer, name: str
) -> None:
    alone = shipped_tokenizer.encode(name).ids
    inside = shipped_tokenizer.encode(f"It is {name}.").ids
    assert any(inside[i : i + len(alone)] == alone for i in range(len(inside)))


def test_vocabulary_and_special_tokens(shipped_tokenizer: Tokenizer) -> None:
    assert shipped_tokenizer.get_vocab_size() == 2048
    assert [shipped_tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(6))


def test_cases_are_chats_as_the_template_writes_them(shipped_tokenizer: Tokenizer) -> None:
    handbook = make_handbook(1, facts=10)
    messages = make_messages(handbook, make_questions(handbook, 1))
    rendered = render(messages, add_generation_prompt=True)
    [case] = draw_cases(shipped_tokenizer, 1, questions=1, tokens=200)
    assert case.prompt == shipped_tokenizer.encode(rendered).ids
