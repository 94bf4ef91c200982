"""Experts in int4: logits equal those of the dequantised weights, in each form of files and for
several ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.checkpoints.weights import load_parameters
from engine.models.checks import check_served
from engine.models.errors import CheckpointError, UnsupportedModel
from engine.models.modules import walk
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.shards import check_shards
from engine.models.weight_formats.int4_experts import Int4Experts
from engine.models.weight_formats.plain import PlainExperts
from tests.engine.models.weight_formats.test_int4 import PROMPT, TOLERANCE, generated, logits
from tests.engine.rigs.checkpoints import Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import (
    KINDS,
    SIZES,
    Int4Checkpoint,
    make_int4,
    rewrite,
    say,
)

CPU = torch.device("cpu")
NUM_EXPERTS = 4


def recipe(size: int = 128) -> Recipe:
    """Make a recipe of Qwen3-MoE with a dense layer."""
    sizes = {"moe_intermediate_size": size, "num_experts": NUM_EXPERTS, "num_experts_per_tok": 2}
    return Recipe("Qwen3Moe", {**SIZES, **sizes, "norm_topk_prob": True, "mlp_only_layers": [1]})


@pytest.fixture(params=["awq", "gptq", "gptq-asym", "packed", "packed-asym"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Int4Checkpoint:
    """Make a checkpoint. With groups of 32, the experts' columns are not a multiple of 128."""
    return make_int4(
        KINDS[request.param], tmp_path, recipe(96 if "packed-asym" in request.param else 128)
    )


def test_logits_and_greedy_tokens_are_those_of_the_numbers_written_out(
    made: Int4Checkpoint,
) -> None:
    wanted = made.int4.logits(PROMPT)
    assert (logits(made.int4.model_dir) - wanted).abs().max() < TOLERANCE
    tokens, _ = generated(made.int4.model_dir)
    assert tokens == generated(made.written_out)[0]
    assert len(tokens) == 64


def test_what_is_kept_is_as_planned(tmp_path: Path) -> None:
    model = read_model_config(make_int4(KINDS["packed-asym"], tmp_path, recipe(96)).int4.model_dir)
    held = load_parameters(tmp_path / "int4", model, torch.float32, CPU)
    for index, layer in enumerate(held.layers):
        for experts in walk(layer, Int4Experts):
            kept = [t for one in (experts.gate_up, experts.down) for t in (one.values, one.scales)]
            matrices = [one for one in model.layers[index].matrices(index) if one.of_expert]
            assert sum(one.numel() * one.element_size() for one in kept) == sum(
                model.weight_format.num_bytes(matrix, "bfloat16") for matrix in matrices
            )
    assert len(list(walk(held.layers, Int4Experts))) == 2


@pytest.mark.parametrize("first", ["qzeros", "scales"])
def test_zero_points_may_come_before_scales_and_after(tmp_path: Path, first: str) -> None:
    """A file may end between zero points and scales, and one word of the layout holds both."""
    model_dir = make_int4(KINDS["awq"], tmp_path, recipe()).int4.model_dir
    model = read_model_config(model_dir)
    expected = list(load_parameters(model_dir, model, torch.float32, CPU).tensors())
    tensors = load_file(model_dir / "model.safetensors")
    begin = {name: tensor for name, tensor in tensors.items() if name.endswith(first)}
    rest = {name: tensor for name, tensor in tensors.items() if name not in begin}
    for number, part in enumerate((begin, rest), 1):
        save_file(part, model_dir / f"model-{number:05}-of-00002.safetensors")
    (model_dir / "model.safetensors").unlink()
    got = load_parameters(model_dir, model, torch.float32, CPU).tensors()
    assert all(map(torch.equal, got, expected))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    model_dir = make_int4(KINDS["gptq"], tmp_path, recipe()).int4.model_dir
    model, name = read_model_config(model_dir), "model.layers.0.mlp.experts.1.up_proj.scales"
    load_parameters(model_dir, model, torch.float32, CPU)
    tensors = dict(load_file(model_dir / "model.safetensors"))
    rewrite(model_dir, tensors | {name: tensors[name][:, :64].contiguous()})
    with pytest.raises(CheckpointError, match=rf"{name} is \(1, 64\), the config gives \(1, 128\)"):
        load_parameters(model_dir, model, torch.float32, CPU)


def test_experts_that_are_named_are_plain(tmp_path: Path) -> None:
    made = make_int4(KINDS["packed"], tmp_path, recipe())
    words = dict(KINDS["packed"].words)
    say(made.written_out, words | {"ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.*"]})
    model = read_model_config(made.written_out)
    held = load_parameters(made.written_out, model, torch.float32, CPU)
    assert list(walk(held.layers, PlainExperts))


def test_columns_that_are_no_whole_groups_are_refused_before_a_start(tmp_path: Path) -> None:
    wide = replace(recipe(192), fields=recipe(192).fields | {"head_dim": 64})
    model_dir = make_checkpoint(wide, tmp_path).model_dir
    say(model_dir, KINDS["gptq-asym"].words)
    check_shards(check_served(model_dir), 1)
    with pytest.raises(UnsupportedModel, match="down_proj has 96 columns: of experts in int4"):
        check_shards(read_model_config(model_dir), 2)
    say(model_dir, KINDS["gptq"].words)
    with pytest.raises(UnsupportedModel, match="down_proj has 192 columns: of experts in int4"):
        check_served(model_dir)


@pytest.mark.parametrize("kind", ["awq", "packed"])
def test_dummy_experts_keep_the_size_of_activations(kind: str, tmp_path: Path) -> None:
    model_dir = make_checkpoint(recipe(), tmp_path).model_dir
    say(model_dir, KINDS[kind].words)
    made = dummy_parameters(read_model_config(model_dir), torch.float32, CPU, seed=0)
    for experts in walk(made.layers, Int4Experts):
        for matrix in (experts.gate_up, experts.down):
            numbers = matrix.dequantised(0)
            assert 0.5 < numbers.std() * numbers.shape[1] ** 0.5 < 2
