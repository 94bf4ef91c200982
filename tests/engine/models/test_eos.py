"""The tokens that end an answer, read from all files that list one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.models.eos import eos_token_ids
from engine.models.errors import BadConfig

TOKENIZER = {
    "added_tokens": [{"id": 7, "content": "<|im_end|>"}],
    "model": {"vocab": {"</s>": 3, "a": 4}},
}


def ids(directory: Path, *, vocab_size: int = 100, **files: object) -> tuple[int, ...]:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return eos_token_ids(directory, vocab_size)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<|im_end|>", (2, 7)),
        ({"content": "<|im_end|>", "special": True}, (2, 7)),
        ("</s>", (2, 3)),
        ("nowhere", (2,)),
        (None, (2,)),
    ],
)
def test_the_tokenizers_own_counts_too(
    tmp_path: Path, said: object, expected: tuple[int, ...]
) -> None:
    config = {"eos_token": said}
    found = ids(tmp_path, config={"eos_token_id": 2}, tokenizer=TOKENIZER, tokenizer_config=config)
    assert found == expected


def test_one_that_both_name_counts_once(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>"}
    generation = {"eos_token_id": [7, 2]}
    assert ids(
        tmp_path, generation_config=generation, tokenizer=TOKENIZER, tokenizer_config=config
    ) == (7, 2)


def test_its_config_says_the_id_first(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>", "added_tokens_decoder": {"9": {"content": "<|im_end|>"}}}
    assert ids(tmp_path, tokenizer=TOKENIZER, tokenizer_config=config) == (9,)
    assert ids(tmp_path, vocab_size=9) == (), "the model has no such logit"


@pytest.mark.parametrize(
    ("given", "expected"), [([2, 100], (2,)), ([2, 5, 2], (2, 5)), (-1, ()), ([99], (99,))]
)
def test_what_no_logit_is_for_is_left_out(
    tmp_path: Path, given: int | list[int], expected: tuple[int, ...]
) -> None:
    """Leave out end tokens without a logit: grammars would refuse them, and so every request with a
    grammar.
    """
    assert ids(tmp_path, generation_config={"eos_token_id": given}) == expected


def test_the_part_for_text_may_have_it(tmp_path: Path) -> None:
    assert ids(tmp_path, config={"text_config": {"eos_token_id": 5}}) == (5,)
    assert ids(tmp_path, config={"eos_token_id": 4, "text_config": {"eos_token_id": 5}}) == (4,)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert ids(tmp_path, tokenizer_config={}) == ()
    with pytest.raises(BadConfig, match=r"tokenizer_config\.json"):
        ids(tmp_path, tokenizer_config={"eos_token": 5})
