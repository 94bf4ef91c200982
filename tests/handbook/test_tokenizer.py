from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from handbook.training.checkpoint import SHIPPED
from handbook.training.rows import frame
from handbook.training.text import make_handbook, make_messages, make_questions
from handbook.training.tokenizer import (
    SPECIAL_TOKENS,
    VOCABULARY,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from tests.handbook.rendering import RefusedRoleError, render


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
    assert shipped_tokenizer.get_vocab_size() == VOCABULARY
    assert [shipped_tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(6))


def test_template_renders_system_user_assistant_and_the_prompt() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": " V\n"},
    ]
    whole = "<|begin|><|system|>S<|end|><|user|>U<|end|><|assistant|>A<|end|><|user|> V\n<|end|>"
    assert render(messages, add_generation_prompt=False) == whole
    assert render(messages, add_generation_prompt=True) == whole + "<|assistant|>"


def test_template_takes_a_developer_for_the_system_and_refuses_other_roles() -> None:
    developer = render([{"role": "developer", "content": "S"}], add_generation_prompt=False)
    assert developer == "<|begin|><|system|>S<|end|>"
    with pytest.raises(RefusedRoleError):
        render([{"role": "critic", "content": "S"}], add_generation_prompt=False)


def test_training_frames_a_chat_as_the_template_does(shipped_tokenizer: Tokenizer) -> None:
    handbook = make_handbook(1, facts=10)
    messages = make_messages(handbook, make_questions(handbook, 1, 4))
    segments = [shipped_tokenizer.encode(m["content"]).ids for m in messages]
    ids, _ = frame([m["role"] for m in messages], segments, shipped_tokenizer.get_vocab())
    assert ids == shipped_tokenizer.encode(render(messages, add_generation_prompt=False)).ids


def test_the_shipped_config_is_the_one_that_is_written(
    shipped_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_tokenizer(shipped_tokenizer, tmp_path)
    written, shipped = (
        json.loads((at / "tokenizer_config.json").read_text()) for at in (tmp_path, SHIPPED)
    )
    assert written == shipped


def test_a_trained_tokenizer_is_saved_and_read_back(tmp_path: Path) -> None:
    tokenizer: Tokenizer = train_tokenizer(texts=20)
    save_tokenizer(tokenizer, tmp_path)
    text = make_handbook(1).text
    assert load_tokenizer(tmp_path).encode(text).ids == tokenizer.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
