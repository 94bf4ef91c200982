from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gateway.prompts.templates.files import template_sources
from gateway.prompts.tokens.tokenizer import ModelFileBroken
from tests.doubles.engine.tiny_model import byte_tokenizer


def saved(directory: Path, templates: object) -> Path:
    """A tokenizer as transformers saves it."""
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
