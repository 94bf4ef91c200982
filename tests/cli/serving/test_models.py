"""What `ratoon models` prints is what the registry has, and what a start would say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.serving.models import what_is_served
from engine.models.architectures.registry import COMPRESSED_TENSORS, SERVED
from engine.models.architectures.rope_fields import ROPES
from tests.cli.console import Console
from tests.cli.fresh import loaded_by
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model


def test_every_architecture_is_listed_with_models_that_have_it(console: Console) -> None:
    printed = console.type("models").out
    listed = console.type("models", "--json").json
    assert [one["name"] for one in listed["architectures"]] == list(SERVED.architectures)
    for one in listed["architectures"]:
        assert one["examples"], one["name"]
        assert f"{one['name']}\t{', '.join(one['examples'])}" in printed


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
    assert found == {
        "model": asked,
        "family": "llama",
        "layers": 2,
        "context": 2048,
        "weight_format": "plain",
        "dtype": "float32",
    }
    assert f"{asked} is served: llama, 2 layers" in console.type("models", asked).out


def test_a_config_alone_can_be_refused(console: Console, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RUNNABLE, "hidden_act": "relu"}))
    printed = console.type("models", str(path))
    assert printed.status == 1
    assert (
        printed.err
        == f"ratoon: {path} cannot be served: hidden_act 'relu': only 'silu' is served\n"
    )


def test_neither_needs_torch(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RUNNABLE))
    for words in (("models",), ("models", str(path))):
        loaded = loaded_by(tmp_path, *words)
        assert "engine.models.architectures.registry" in loaded
        assert not {"torch", "triton", "tokenizers", "huggingface_hub"} & loaded
