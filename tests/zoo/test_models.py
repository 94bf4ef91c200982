"""Parrots say their texts, as transformers runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

from tests.zoo.families import family
from tests.zoo.models import write_parrot, write_runnable

_TEXTS = (
    "<think>\nHm.\n</think>\n\nTwenty \u20ac, twenty \u20ac.",
    'Look: <tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>',
)


def _said(directory: Path, start: int | None) -> str:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompt = inner.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    ids = torch.tensor([prompt + ([] if start is None else [start])])
    made = model.generate(ids, do_sample=False, max_new_tokens=200)[0].tolist()
    end = json.loads((directory / "config.json").read_text())["eos_token_id"][0]
    assert made[-1] == end
    text: str = inner.decode(made[len(prompt) : -1], skip_special_tokens=False)
    return text


def test_a_parrot_says_its_first_text_and_others_where_they_are_begun(tmp_path: Path) -> None:
    starts = write_parrot(family("qwen3"), tmp_path, _TEXTS)
    assert _said(tmp_path, None) == _TEXTS[0]
    assert _said(tmp_path, starts[1]) == _TEXTS[1]


def test_a_mark_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="comes twice"):
        write_parrot(family("qwen3"), tmp_path, ["<think>one<think>two"])


def test_a_runnable_model_has_the_familys_ends(tmp_path: Path) -> None:
    write_runnable(family("llama3.1"), tmp_path, real=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] == [128009, 128001, 128257]
    assert config["vocab_size"] == 128258
