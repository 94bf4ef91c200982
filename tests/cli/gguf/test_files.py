"""A GGUF file gives the same config and weights as the model from which it was made."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from cli.gguf.config import read_config
from cli.gguf.description import describe
from cli.gguf.tokenizer import read_tokenizer
from engine.models.checkpoints.weights import load_parameters
from engine.models.checks import check_served
from engine.models.config import ModelConfig
from engine.models.errors import BadConfig, CheckpointError, UnsupportedModel
from engine.models.gguf.header import GgufHeader, read_header
from engine.models.gguf.tensors import unpaired
from engine.models.layers.rope import RopeConfig
from engine.models.modules import CheckpointTensor
from engine.models.parameters import checkpoint_tensors
from engine.models.served.reading import read_model_config
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.files.gguf_files import write_gguf
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

_MOE = {**RECIPES["qwen3-moe"].fields, "mlp_only_layers": []}
_WINDOWS = ["sliding_attention"] * 5 + ["full_attention"]
_GEMMA = {
    "num_hidden_layers": 6,
    "layer_types": _WINDOWS,
    "sliding_window": 24,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
}
FILES = {
    "llama": ("llama", RECIPES["llama"]),
    "llama-tied": ("llama", RECIPES["llama-tied-mha"]),
    "llama3-rope": ("llama", RECIPES["llama3-rope"]),
    "qwen2": ("qwen2", RECIPES["qwen2"]),
    "qwen3": ("qwen3", RECIPES["qwen3"]),
    "qwen3-moe": ("qwen3moe", Recipe("Qwen3Moe", _MOE)),
    "gemma3": ("gemma3", Recipe("Gemma3", _GEMMA, config="Gemma3TextConfig", norm=0.0)),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(RECIPES["llama"], tmp_path_factory.mktemp("llama"))


def parameters(model_dir: Path) -> dict[str, CheckpointTensor]:
    config = read_model_config(model_dir)
    return checkpoint_tensors(
        load_parameters(model_dir, config, torch.float32, torch.device("cpu"))
    )


@pytest.mark.parametrize("name", FILES)
def test_the_weights_are_those_it_was_made_of(name: str, tmp_path: Path) -> None:
    architecture, recipe = FILES[name]
    truth = make_checkpoint(recipe, tmp_path / "truth")
    file = write_gguf(truth, tmp_path / "tiny.gguf", architecture)
    described = describe(file, tmp_path / "cache")
    wanted, got = parameters(truth.model_dir), parameters(described)
    assert wanted.keys() == got.keys()
    for tensor, one in wanted.items():
        assert torch.allclose(got[tensor].view, one.view, atol=1e-6), tensor
    check_served(described)
    assert _but_for_rope(described) == _but_for_rope(truth.model_dir)


def _but_for_rope(model_dir: Path) -> ModelConfig:
    """Return the config without its dtype and rope scaling, which GGUF represents differently."""
    model = read_model_config(model_dir)
    mixers = [replace(layer.attention, rope=RopeConfig(1.0)) for layer in model.layers]
    layers = tuple(
        replace(layer, mixer=mixer) for layer, mixer in zip(model.layers, mixers, strict=True)
    )
    return replace(model, dtype="float32", layers=layers)


@pytest.mark.parametrize("name", ["llama3-rope", "gemma3", "qwen3-moe"])
def test_its_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, recipe = FILES[name]
    truth = make_checkpoint(recipe, tmp_path / "truth")
    file = write_gguf(truth, tmp_path / "tiny.gguf", architecture)
    driven = HandDriven(build_runner(describe(file, tmp_path / "cache")))
    prompt = random_prompt(75)
    logits = driven.logits([data_row(driven.add(prompt), 0, len(prompt))])
    assert (logits - truth.logits(prompt)).abs().max() < 1e-4


@pytest.mark.parametrize(
    "packed", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.BF16, GGMLQuantizationType.Q5_0]
)
def test_packed_weights_are_what_they_stand_for(
    packed: GGMLQuantizationType, tmp_path: Path
) -> None:
    wide = Recipe("Qwen3", {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32})
    truth = make_checkpoint(wide, tmp_path / "truth")
    file = write_gguf(truth, tmp_path / "tiny.gguf", "qwen3", packed)
    got = parameters(describe(file, tmp_path / "cache"))
    for tensor, one in parameters(truth.model_dir).items():
        wanted = one.view.numpy()
        if wanted.ndim == 2:
            wanted = gguf.dequantize(gguf.quantize(wanted, packed), packed)
            assert not torch.equal(one.view, torch.from_numpy(wanted)), "packing changes nothing"
        assert torch.equal(got[tensor].view, torch.from_numpy(wanted)), tensor


def test_a_file_is_described_once(llama: Checkpoint, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "tiny.gguf", "llama")
    first = describe(file, tmp_path / "cache")
    (first / "mark").touch()
    assert describe(file, tmp_path / "cache") == first
    assert (first / "mark").exists()
    file.touch()
    assert describe(file, tmp_path / "cache") != first, "it may be another file by now"


def test_a_file_cut_short_anywhere_is_refused(llama: Checkpoint, tmp_path: Path) -> None:
    whole = write_gguf(llama, tmp_path / "tiny.gguf", "llama").read_bytes()
    read_header(tmp_path / "tiny.gguf")
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 8, 20, 100, 1000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="no whole GGUF file"):
            read_header(cut)


def test_no_byte_of_a_header_brings_more_than_a_typed_error(
    llama: Checkpoint, tmp_path: Path
) -> None:
    whole = write_gguf(llama, tmp_path / "tiny.gguf", "llama").read_bytes()
    broken, outcomes = tmp_path / "broken.gguf", set()
    for at in [*range(200), *range(200, 5000, 61)]:
        broken.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_header(broken)
            outcomes.add("read")
        except (CheckpointError, UnsupportedModel) as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"read", "CheckpointError", "UnsupportedModel"}


@pytest.mark.parametrize(("dims", "told"), [(4, None), (5, "5 dimensions")])
def test_a_tensor_has_as_many_dimensions_as_the_format_allows(
    dims: int, told: str | None, tmp_path: Path
) -> None:
    """Limit a tensor's number of dimensions.

    Without this limit, computing the size of a tensor with very many dimensions takes hours.
    """
    tensor = struct.pack("<Q", 1) + b"a" + struct.pack("<I", dims)
    tensor += struct.pack(f"<{dims}Q", *([1] * dims)) + struct.pack("<IQ", 0, 0)
    file = tmp_path / "tensor.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(64))
    if told is None:
        assert read_header(file).tensors["a"].shape == (1,) * dims, "the control"
    else:
        with pytest.raises(CheckpointError, match=told):
            read_header(file)


def config_of(header: GgufHeader) -> object:
    return read_config(header, None)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("general.architecture", "mamba", "GGUF of 'mamba': served are gemma3, llama"),
        ("split.count", 3, "one of several GGUF files"),
        ("llama.expert_count", 8, "with experts"),
        ("llama.rope.scaling.type", "su", "rope.scaling.type 'su'"),
        ("llama.attention.head_count", [4, 4, 2], "differs from layer to layer"),
        ("tokenizer.ggml.pre", "viking", "tokenizer.ggml.pre 'viking'"),
        ("tokenizer.ggml.model", "bert", "tokenizer.ggml.model 'bert'"),
    ],
)
def test_what_is_not_served_is_named(
    llama: Checkpoint, field: str, value: Any, told: str, tmp_path: Path
) -> None:
    header = read_header(write_gguf(llama, tmp_path / "tiny.gguf", "llama"))
    config_of(header)
    read_tokenizer(header)
    changed = replace(header, fields={**header.fields, field: value})
    read = read_tokenizer if field.startswith("tokenizer") else config_of
    with pytest.raises(UnsupportedModel, match=re.escape(told)):
        read(changed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", [1, 2]),
        ("tokens", ["a" * 2000]),
        ("token_type", [1]),
        ("merges", [7]),
        ("merges", ["a nowhere"]),
        ("bos_token_id", -1),
        ("bos_token_id", "1"),
        ("pre", 5),
        ("add_bos_token", "yes"),
    ],
)
def test_fields_of_a_wrong_type_are_named(
    llama: Checkpoint, field: str, value: Any, tmp_path: Path
) -> None:
    header = read_header(write_gguf(llama, tmp_path / "tiny.gguf", "llama"))
    changed = replace(header, fields={**header.fields, f"tokenizer.ggml.{field}": value})
    with pytest.raises(BadConfig, match=field):
        read_tokenizer(changed)


def test_an_id_behind_the_vocabulary_names_no_token(llama: Checkpoint, tmp_path: Path) -> None:
    header = read_header(write_gguf(llama, tmp_path / "tiny.gguf", "llama"))
    for number in (2, 10**6):
        ends = {"eos_token_id": number, "add_eos_token": True}
        fields = {**header.fields, **{f"tokenizer.ggml.{name}": one for name, one in ends.items()}}
        ids = read_tokenizer(replace(header, fields=fields)).encode("").ids
        assert ids == ([2] if number == 2 else [])


def test_rows_that_are_no_whole_heads_are_refused() -> None:
    rows = np.arange(64, dtype=np.float32).reshape(64, 1)
    assert unpaired("q", rows, 4)[:10, 0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3]
    with pytest.raises(CheckpointError, match="q has 64 rows for 5 heads"):
        unpaired("q", rows, 5)
