"""Reading checkpoints: every tensor is loaded into its parameter, and every fault is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.checkpoints.weight_files import weight_files
from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import (
    CheckpointError,
)
from engine.models.parameters import (
    Parameters,
    checkpoint_tensors,
    dummy_parameters,
    empty_parameters,
)
from engine.models.served.reading import read_model_config
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.checkpoints import RECIPES

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]


def load(model_dir: Path, dtype: torch.dtype = torch.float32) -> Parameters:
    return load_parameters(model_dir, read_model_config(model_dir), dtype, CPU)


@pytest.fixture
def copied(checkpoint: MakeCheckpoint, tmp_path: Path) -> Callable[[str], Path]:
    """Copy a checkpoint, so that a test may damage it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(checkpoint(name).model_dir, tmp_path / name))

    return copy


def rewrite(model_dir: Path, change: Callable[[Tensors], object]) -> None:
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path.with_suffix(".new"))  # the loaded tensors are views of the old file
    path.with_suffix(".new").rename(path)


def saved_tensors(model_dir: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in sorted(model_dir.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def part(state: Tensors) -> None:
    """Split the matrices that Phi-3 and Granite merge, and give the halves separate names."""
    for name in list(state):
        if "qkv_proj" in name:
            value = state.pop(name)
            rows = [value.shape[0] // 2, *[value.shape[0] // 4] * 2]
            parts = zip("qkv", value.split(rows), strict=True)  # type: ignore[no-untyped-call]
            state |= {name.replace("qkv_proj", f"{one}_proj"): rows for one, rows in parts}
        elif "gate_up_proj" in name:
            gate, up = state.pop(name).chunk(2)
            state |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        elif "moe." in name and "linear" in name:
            of_up = "moe.input_linear" in name
            names = ("gate_proj", "up_proj") if of_up else ("down_proj",)
            for number, expert in enumerate(state.pop(name)):
                place = f"{name.partition('moe.')[0]}moe.experts.{number}"
                for one, rows in zip(names, expert.chunk(len(names)), strict=True):
                    state[f"{place}.{one}.weight"] = rows
        elif "shared_mlp.input_linear" in name:
            gate, up = state.pop(name).chunk(2)
            place = name.partition("input")[0]
            state |= {f"{place}gate_proj.weight": gate, f"{place}up_proj.weight": up}
        elif "shared_mlp" in name:
            state[f"{name.partition('output')[0]}down_proj.weight"] = state.pop(name)


@pytest.mark.parametrize("name", RECIPES)
def test_every_tensor_lands_where_its_name_says(checkpoint: MakeCheckpoint, name: str) -> None:
    saved = checkpoint(name)
    parameters = load(saved.model_dir)
    state = saved_tensors(saved.model_dir)
    views = checkpoint_tensors(parameters)
    if name == "phi3" or name.startswith("granite"):
        part(state)
    # the order of these tensors is tested through logits
    if name.startswith(("nemotron", "gemma4-moe", "mistral4")):
        names = read_model_config(saved.model_dir).names
        state = {names.own(one): tensor for one, tensor in state.items()}
        for one in [one for one in state if names.experts(one)]:
            parts = names.experts(one)
            state |= dict(zip(parts, state.pop(one).flatten(0, 1).chunk(len(parts)), strict=True))
    assert views.keys() == state.keys()
    for tensor_name, tensor in views.items():
        value, convert = state[tensor_name], tensor.convert
        expected = value if convert is None else convert(value)
        assert expected is not None
        assert torch.equal(tensor.view, expected), tensor_name


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gate_up_proj", (3, 4)),
        ("gate_up_proj", (4, 48, 159)),
        ("gate_up_proj_bias", (160,)),
        ("down_proj", (4, 48, 80)),
        ("down_proj_bias", (4, 47)),
    ],
)
def test_experts_in_one_tensor_of_another_shape_are_named(
    copied: Callable[[str], Path], name: str, shape: tuple[int, ...]
) -> None:
    model_dir, whole = copied("gpt-oss"), f"model.layers.1.mlp.experts.{name}"
    load(model_dir)
    rewrite(model_dir, lambda tensors: tensors.update({whole: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=f"{whole} is {re.escape(str(shape))}, the config"):
        load(model_dir)


@pytest.mark.parametrize("name", RECIPES)
def test_the_named_views_cover_every_parameter_once(checkpoint: MakeCheckpoint, name: str) -> None:
    config = read_model_config(checkpoint(name).model_dir)
    parameters = empty_parameters(config, torch.float32, CPU)
    for tensor in parameters.tensors():
        tensor.zero_()
    for filled in checkpoint_tensors(parameters).values():
        filled.view.add_(1.0)
    assert all(bool((tensor == 1.0).all()) for tensor in parameters.tensors())
    assert parameters.num_bytes == 4 * sum(tensor.numel() for tensor in parameters.tensors())


def test_weights_are_cast_while_they_are_read(checkpoint: MakeCheckpoint) -> None:
    exact, cast = (
        load(checkpoint("llama").model_dir, dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    for left, right in zip(exact.tensors(), cast.tensors(), strict=True):
        assert right.dtype == torch.bfloat16
        assert torch.equal(left.to(torch.bfloat16), right)


def test_a_sharded_checkpoint_is_read_whole(checkpoint: MakeCheckpoint) -> None:
    files = weight_files(checkpoint("llama-sharded").model_dir)
    assert len(files) > 2
    assert files == sorted(files)


def test_a_tensor_that_two_shards_have_is_named(copied: Callable[[str], Path]) -> None:
    """Refuse a tensor that is in two shards: neither copy has precedence, with or without an
    index.
    """
    model_dir = copied("llama-sharded")
    load(model_dir)
    first, second = weight_files(model_dir)[:2]
    tensors = load_file(first)
    name = sorted(tensors)[0]
    save_file({**load_file(second), name: tensors[name]}, second.with_suffix(".new"))
    second.with_suffix(".new").rename(second)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"{name} is in the files twice"):
            load(model_dir)
        (model_dir / "model.safetensors.index.json").unlink(missing_ok=True)


NORM = "model.layers.1.input_layernorm.weight"
V_PROJ = "model.layers.2.self_attn.v_proj.weight"


@pytest.mark.parametrize("name", [NORM, V_PROJ, "model.embed_tokens.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(copied: Callable[[str], Path], name: str) -> None:
    model_dir = copied("llama")
    load(model_dir)
    rewrite(model_dir, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"{name}.*in no file"):
        load(model_dir)


@pytest.mark.parametrize(
    "name", ["model.layers.3.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_a_surplus_tensor_is_named(copied: Callable[[str], Path], name: str) -> None:
    model_dir = copied("llama")
    load(model_dir)
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(48)}))
    with pytest.raises(CheckpointError, match=f"{name} has no place"):
        load(model_dir)


def test_stored_rotary_frequencies_are_ignored(copied: Callable[[str], Path]) -> None:
    model_dir = copied("llama")
    without = load(model_dir)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert all(map(torch.equal, load(model_dir).tensors(), without.tensors()))


@pytest.mark.parametrize(
    ("name", "shape"),
    [(NORM, (47,)), (V_PROJ, (48, 32)), ("model.embed_tokens.weight", (301, 48)), (NORM, ())],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(
    copied: Callable[[str], Path], name: str, shape: tuple[int, ...]
) -> None:
    model_dir = copied("llama")
    load(model_dir)
    rewrite(model_dir, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=f"{name} is .*the config gives") as caught:
        load(model_dir)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_tensor_is_refused(copied: Callable[[str], Path], dtype: torch.dtype) -> None:
    model_dir = copied("llama")
    rewrite(model_dir, lambda tensors: tensors.update({NORM: torch.ones(48).to(dtype)}))
    with pytest.raises(CheckpointError, match=f"{NORM} is .*, which its weight format has not"):
        load(model_dir)


def test_a_tied_checkpoint_may_repeat_its_head_but_not_have_another(
    copied: Callable[[str], Path],
) -> None:
    model_dir = copied("llama-tied-mha")
    embedding = load_file(model_dir / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(model_dir, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    load(model_dir)
    rewrite(model_dir, lambda tensors: tensors.update({"lm_head.weight": embedding + 1}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
        load(model_dir)


@pytest.mark.parametrize("pickled", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_pickled_weights_are_never_opened(copied: Callable[[str], Path], pickled: str) -> None:
    model_dir = copied("llama")
    (model_dir / pickled).write_bytes(b"not even a pickle")
    load(model_dir)  # reads the safetensors beside the pickle
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="only pickled weights"):
        load(model_dir)


def test_a_directory_without_weights_says_so(copied: Callable[[str], Path]) -> None:
    model_dir = copied("llama")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has neither"):
        load(model_dir)


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_truncated_file_is_unreadable(copied: Callable[[str], Path], keep: int) -> None:
    model_dir = copied("llama")
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(model_dir)


def point_index_at(model_dir: Path, name: str) -> None:
    path = model_dir / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][NORM] = name
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "absent.safetensors"])
def test_an_index_leads_only_to_files_beside_it(copied: Callable[[str], Path], name: str) -> None:
    model_dir = copied("llama-sharded")
    load(model_dir)
    point_index_at(model_dir, name)
    with pytest.raises(CheckpointError, match=name):
        load(model_dir)


def test_an_index_that_is_no_json_is_unreadable(copied: Callable[[str], Path]) -> None:
    model_dir = copied("llama-sharded")
    (model_dir / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="index"):
        load(model_dir)


def test_an_index_that_is_no_file_is_unreadable(copied: Callable[[str], Path]) -> None:
    model_dir = copied("llama-sharded")
    (model_dir / "model.safetensors.index.json").unlink()
    (model_dir / "model.safetensors.index.json").mkdir()
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read: Is a directory"):
        load(model_dir)


def test_a_missing_shard_is_unreadable(copied: Callable[[str], Path]) -> None:
    model_dir = copied("llama-sharded")
    weight_files(model_dir)[1].unlink()
    with pytest.raises(CheckpointError, match="is not there"):
        load(model_dir)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3-biases"])
def test_dummy_weights_are_the_same_for_a_seed_alone(checkpoint: MakeCheckpoint, name: str) -> None:
    config = read_model_config(checkpoint(name).model_dir)
    first, again, other = (
        list(dummy_parameters(config, torch.float32, CPU, seed).tensors()) for seed in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert all(bool(tensor.isfinite().all()) for tensor in first)
