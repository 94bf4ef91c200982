"""A token is a control token if a model's files call it special, or if a template writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from engine.models.token_marks import ModelFileBroken, read_token_marks
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.doubles.engine.tiny_model import byte_tokenizer

_TABLE = AddedToken("<table>", special=False, normalized=False)


def _model(directory: Path, files: dict[str, Any]) -> Path:
    inner = byte_tokenizer()
    inner.add_tokens([_TABLE])
    inner.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"eos_token": "<table>"}},
        {"tokenizer_config.json": {"sep_token": {"content": "<table>", "lstrip": False}}},
        {"tokenizer_config.json": {"additional_special_tokens": ["<x>", "<table>"]}},
        {"tokenizer_config.json": {"extra_special_tokens": {"table_token": "<table>"}}},
        {"tokenizer_config.json": {"extra_special_tokens": [{"content": "<table>"}]}},
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {"259": {"content": "<table>", "special": True}}
            }
        },
        {"special_tokens_map.json": {"additional_special_tokens": [{"content": "<table>"}]}},
        {"generation_config.json": {"eos_token_id": [257, 259]}},
        {"config.json": {"eos_token_id": 259}},
        {"config.json": {"text_config": {"eos_token_id": 259}}},
        {"tokenizer_config.json": {"chat_template": "{{ '<table>' }}"}},
        {"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "<table>"}]}},
        {"chat_template.jinja": "<table>"},
        {"chat_template.json": {"chat_template": "<table>"}},
        {"additional_chat_templates/tool_use.jinja": "<table>"},
    ],
    ids=str,
)
def test_a_token_that_a_file_calls_special_or_writes_is_a_control_token(
    files: dict[str, Any], tmp_path: Path
) -> None:
    assert "<table>" in Tokenizer.load(_model(tmp_path, files)).control.tokens


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": {"chat_template": "table", "name": "<table>"}},
        {"tokenizer_config.json": {"added_tokens_decoder": {"259": {"content": "<table>"}}}},
        {"generation_config.json": {"eos_token_id": 257, "top_k": 259}},
    ],
    ids=str,
)
def test_no_other_word_makes_it_one(files: dict[str, Any], tmp_path: Path) -> None:
    loaded = Tokenizer.load(_model(tmp_path, files))
    assert "<table>" not in loaded.control.tokens
    assert loaded.encode("<table>", add_special_tokens=False).tolist() == [259]


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileBroken, match="special_tokens_map"):
        read_token_marks(_model(tmp_path, {"special_tokens_map.json": "{"}))
