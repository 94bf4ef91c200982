from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gateway.prompts.templates.files import template_sources, tokenizer_info
from gateway.prompts.tokens.tokenizer import ModelFileBroken
from tests.doubles.engine.tiny_model import byte_tokenizer


def saved(directory: Path, templates: object) -> Path:
    """Save a tokenizer's chat templates in the files of transformers."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("one", {"default": "one"}),
        ({"default": "one", "tool_use": "two", "rag": "three"},) * 2,
        (None, {}),
    ],
)
def test_as_transformers_saves_them(tmp_path: Path, given: object, found: object) -> None:
    assert template_sources(saved(tmp_path, given)) == found


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_in_json(tmp_path: Path, file: str) -> None:
    listed = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    (tmp_path / file).write_text(json.dumps({"chat_template": listed}))
    assert template_sources(tmp_path) == {"default": "one", "tool_use": "two"}
    (tmp_path / file).write_text(json.dumps({"chat_template": "alone"}))
    assert template_sources(tmp_path) == {"default": "alone"}
    (tmp_path / "chat_template.jinja").write_text("newer")
    assert template_sources(tmp_path) == {"default": "newer"}


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileBroken, match="tool_use"):
        template_sources(tmp_path)


def test_a_tokenizer_as_clients_are_told_of_it(tmp_path: Path) -> None:
    config = {
        "name_or_path": "/home/trainer/run-7",
        "vocab_file": "/home/trainer/vocab.json",
        "eos_token": {"content": "<e>", "special": True},
        "pad_token": None,
        "additional_special_tokens": ["<a>", {"content": "<b>"}],
        "model_max_length": 10**30,
        "add_bos_token": False,
        "chat_template": "one",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<e>",
        "pad_token": None,
        "additional_special_tokens": ["<a>", "<b>"],
        "add_bos_token": False,
        "chat_template": "one",
    }
    assert tokenizer_info(tmp_path) == told
    own = tmp_path / "own.jinja"
    own.write_text("the operator's")
    assert tokenizer_info(tmp_path, own) == {**told, "chat_template": "the operator's"}
    directory = saved(tmp_path / "saved", None)
    assert tokenizer_info(directory)["tokenizer_class"]
    assert "chat_template" not in tokenizer_info(directory)
