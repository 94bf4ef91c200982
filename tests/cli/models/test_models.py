"""The output of `ratoon models` agrees with the registry and with the log of a start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.models.models import what_is_served
from engine.models.architectures.fields.rope_fields import ROPES
from engine.models.served.registry import COMPRESSED_TENSORS, SERVED
from engine.models.served.unserved import UNSERVED
from tests.cli.console import Console
from tests.cli.fresh import loaded_by
from tests.doubles.engine.shapes import SHAPES
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.zoo.families import family
from tests.zoo.models import write_runnable


def test_every_architecture_is_listed_with_models_that_have_it(console: Console) -> None:
    printed = console.type("models").out
    listed = console.type("models", "--json").json
    assert [one["name"] for one in listed["architectures"]] == list(SERVED.architectures)
    for one in listed["architectures"]:
        assert one["examples"], one["name"]
        assert f"{one['name']}\t{', '.join(one['examples'])}" in printed


def test_what_is_missing_for_other_architectures_is_said(console: Console, tmp_path: Path) -> None:
    listed = console.type("models", "--json").json["unserved"]
    assert {one["needs"]: tuple(one["names"]) for one in listed} == UNSERVED
    assert "\nlatent attention\tAXK1ForCausalLM, " in console.type("models").out
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RUNNABLE, "architectures": ["LongcatFlashForCausalLM"]}))
    assert console.type("models", str(path)).err.endswith("; it needs latent attention\n")
    path.write_text(json.dumps({**RUNNABLE, "architectures": ["NobodysForCausalLM"]}))
    assert "needs" not in console.type("models", str(path)).err


def test_the_page_has_every_architecture() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/which-models-run.md").read_text()
    for name in SERVED.architectures:
        assert f"`{name}`" in page


def test_formats_are_those_of_the_registry(console: Console) -> None:
    listed = console.type("models", "--json").json
    assert listed["weight_formats"] == ["plain", *SERVED.formats]
    assert listed["compressed_tensors"] == list(COMPRESSED_TENSORS)
    assert "float-quantized, pack-quantized" in console.type("models").out
    assert "bfloat16" in listed["dtypes"]
    assert "bfloat16" in listed["kv_dtypes"]
    assert listed["dtypes"] == what_is_served().dtypes
    assert listed["ropes"] == list(ROPES)


@pytest.mark.parametrize("weights", [True, False])
def test_a_model_that_is_served_is_described(
    console: Console, tmp_path: Path, *, weights: bool
) -> None:
    directory = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    if weights:
        (directory / "model.safetensors").touch()
    asked = str(directory) if weights else str(directory / "config.json")
    found = console.type("models", asked, "--json").json
    # this can be read only from the weight files
    assert (found.pop("chats") is not None) == weights
    assert found == {
        "model": asked,
        "family": "llama",
        "layers": 2,
        "context": 2048,
        "weight_format": "plain",
        "dtype": "float32",
        "state": None,
    }
    assert f"{asked} is served: llama, 2 layers" in console.type("models", asked).out


def test_a_hybrid_says_what_its_state_takes(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPES["qwen3.5-27b"]))
    found = console.type("models", str(path), "--json").json["state"]
    assert found == {"layers": 48, "state_bytes": 153_944_064, "as_kv_tokens": 2349}
    said = console.type("models", str(path)).out
    assert "48 of its layers are recurrent. A state takes 153,944,064 bytes" in said


def test_a_config_alone_can_be_refused(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RUNNABLE, "hidden_act": "relu"}))
    printed = console.type("models", str(path))
    assert printed.status == 1
    assert (
        printed.err
        == f"ratoon: {path} cannot be served: hidden_act 'relu': only 'silu' is served\n"
    )


def _deep(directory: Path) -> None:
    nested = "[" * 200 + "]" * 200
    path = directory / "config.json"
    path.write_text(json.dumps(RUNNABLE)[:-1] + f', "x": {nested}}}')


def _pipe(name: str) -> Callable[[Path], None]:
    def changed(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)

    return changed


def _with(**fields: int) -> Callable[[Path], None]:
    def changed(directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({**RUNNABLE, **fields}))

    return changed


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (_deep, "config.json: JSON is nested more than 64 levels deep"),
        (_pipe("tokenizer_config.json"), "tokenizer_config.json"),
        (_pipe("generation_config.json"), "generation_config.json"),
        (_pipe("special_tokens_map.json"), "special_tokens_map.json"),
        (_pipe("chat_template.jinja"), "chat_template.jinja"),
        (_pipe("model.safetensors"), "model.safetensors is no regular file"),
        (_pipe("model.safetensors.index.json"), "model.safetensors.index.json"),
        (_with(num_hidden_layers=1025), "num_hidden_layers"),
    ],
)
def test_a_broken_folder_is_refused_in_a_line(
    console: Console, tmp_path: Path, changed: Callable[[Path], None], line: str
) -> None:
    directory = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    (directory / "model.safetensors").touch()
    assert console.type("models", str(directory)).status == 0
    if line.endswith("index.json"):
        (directory / "model.safetensors").unlink()
    changed(directory)
    printed = console.type("models", str(directory))
    assert printed.status == 1
    assert printed.err.count("\n") == 1
    assert line in printed.err


def test_the_most_layers_are_served(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RUNNABLE, "num_hidden_layers": 1024}))
    assert console.type("models", str(path), "--json").json["layers"] == 1024


def test_neither_needs_torch(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RUNNABLE))
    for words in (("models",), ("models", str(path))):
        loaded = loaded_by(tmp_path, *words)
        assert "engine.models.served.registry" in loaded
        assert not {"torch", "triton", "tokenizers", "huggingface_hub"} & loaded


def model_of(directory: Path, name: str) -> Path:
    write_runnable(family(name), directory)
    (directory / "model.safetensors").touch()
    return directory


@pytest.mark.parametrize(
    ("name", "tools", "reasoning", "line"),
    [
        ("qwen3", "hermes", "think", "thinking of earlier turns: dropped"),
        ("llama3.1", "llama3_json", None, "several calls in a turn: shown as turns of one call"),
        ("gpt-oss", "harmony", "harmony", "system messages inside the conversation: rendered as"),
        ("mistral-nemo", "mistral", None, "user's turns in a row: joined"),
        ("gemma3", None, None, "tools: refused, unless none may be called"),
        ("r1-distill-qwen", "deepseek_v3", "think", "tools: shown in a message of the system"),
    ],
)
def test_what_is_recognised_is_said(
    console: Console, tmp_path: Path, name: str, tools: str | None, reasoning: str | None, line: str
) -> None:
    asked = str(model_of(tmp_path / name, name))
    chats = console.type("models", asked, "--json").json["chats"]
    assert (chats["tools"], chats["reasoning"]) == (tools, reasoning)
    printed = console.type("models", asked).out
    assert f"\n  {line}" in printed
    assert f"\ntools: {tools or 'no format was recognised, requests with tools'}" in printed
    assert f"\nreasoning: {reasoning or 'no format was recognised'}" in printed
    for limit in chats["templates"][0]["limits"]:
        assert f"\n  {limit['cannot']}: {limit['instead']}\n" in printed


def test_further_templates_are_named_and_what_is_not_used(console: Console, tmp_path: Path) -> None:
    directory = model_of(tmp_path / "two", "gemma3")
    (directory / "chat_template.jinja").write_text(family("gemma3").template())
    further = directory / "additional_chat_templates"
    further.mkdir()
    (further / "tool_use.jinja").write_text(family("qwen3").template())
    (further / "rag.jinja").write_text("{{ documents }}")
    printed = console.type("models", str(directory)).out
    assert "\nchat templates: default, rag (not used), tool_use\ntools: hermes\n" in printed
    templates = console.type("models", str(directory), "--json").json["chats"]["templates"]
    assert {one["name"]: one["limits"] is not None for one in templates} == {
        "default": True,
        "rag": False,
        "tool_use": True,
    }


def test_a_model_without_a_template_refuses_chats(console: Console, tmp_path: Path) -> None:
    directory = model_of(tmp_path / "base", "qwen3")
    refused = "no default chat template: chats are refused, completions are served\n"
    assert refused not in console.type("models", str(directory)).out
    (directory / "tokenizer_config.json").write_text("{}")
    assert console.type("models", str(directory)).out.endswith(refused)
    chats = console.type("models", str(directory), "--json").json["chats"]
    assert chats == {"templates": [], "tools": None, "reasoning": None}


def test_a_template_that_ends_the_start_is_said(console: Console, tmp_path: Path) -> None:
    directory = model_of(tmp_path / "broken", "qwen3")
    (directory / "chat_template.jinja").write_text("{% if %}")
    printed = console.type("models", str(directory))
    assert printed.status == 1
    assert printed.err.startswith("ratoon: the chat template does not compile: ")


def test_the_flags_of_serve_for_chats_can_be_tried(console: Console, tmp_path: Path) -> None:
    asked = ("models", str(model_of(tmp_path / "qwen", "qwen3.6")))
    dropped = "\n  thinking of earlier turns: dropped\n"
    assert dropped in console.type(*asked).out
    keeps = ("--default-chat-template-kwargs", '{"preserve_thinking": true}')
    assert dropped not in console.type(*asked, *keeps).out
    own = tmp_path / "own.jinja"
    own.write_text(family("gemma3").template())
    printed = console.type(*asked, "--chat-template", str(own), "--tool-format", "hermes").out
    assert "\ntools: hermes\nreasoning: no format" in printed
    assert "\n  tools: shown in a message of the system\n" in printed


@pytest.mark.parametrize(
    ("flag", "value", "status"),
    [
        ("--tool-format", "Hermes", 2),
        ("--default-chat-template-kwargs", "[]", 2),
        ("--chat-template", "/nowhere.jinja", 1),
    ],
)
def test_flags_for_chats_that_are_wrong(
    console: Console, tmp_path: Path, flag: str, value: str, status: int
) -> None:
    printed = console.type("models", str(model_of(tmp_path / "qwen", "qwen3")), flag, value)
    assert printed.status == status
    assert value.strip("[]") in printed.err
