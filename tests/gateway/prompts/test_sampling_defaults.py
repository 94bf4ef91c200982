"""The used fields of generation_config.json, and refused values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.sampling_defaults import (
    DIALECT_DEFAULTS,
    GenerationConfigBroken,
    SamplingDefaults,
    in_words,
    read_sampling_defaults,
)

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1]}


def written(directory: Path, content: dict[str, Any]) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(content))
    return directory


def test_what_it_says_is_the_default(tmp_path: Path) -> None:
    found = read_sampling_defaults(written(tmp_path, QWEN3))
    assert found == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)
    assert in_words(found) == "temperature 0.6, top_p 0.95, top_k 20"
    assert read_sampling_defaults(tmp_path, "none") == DIALECT_DEFAULTS


@pytest.mark.parametrize("content", [{}, {"temperature": None}, {"do_sample": False}])
def test_what_it_leaves_out_is_the_dialects(tmp_path: Path, content: dict[str, Any]) -> None:
    assert read_sampling_defaults(tmp_path) == DIALECT_DEFAULTS, "without the file"
    found = read_sampling_defaults(written(tmp_path, content))
    assert (found, in_words(found)) == (DIALECT_DEFAULTS, "")


def test_the_longest_answer_and_what_is_off(tmp_path: Path) -> None:
    content = {"max_new_tokens": 512, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.05}
    found = read_sampling_defaults(written(tmp_path, content))
    assert found == SamplingDefaults(max_tokens=512, min_p=0.1, repetition_penalty=1.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
    ],
)
def test_what_no_request_could_ask_for_is_named(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(GenerationConfigBroken, match=rf"\$\.{name}.*--generation-config none"):
        read_sampling_defaults(written(tmp_path, {name: value}))
    assert read_sampling_defaults(tmp_path, "none") == DIALECT_DEFAULTS


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(GenerationConfigBroken, match=r"generation_config\.json"):
        read_sampling_defaults(tmp_path)
