"""Every weight format gives the products of the dequantised numbers, also divided among ranks."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import BadConfig, CheckpointError, UnsupportedModel
from engine.models.modules import Allocator, Linear, LinearConfig, WeightFormat, walk
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED as MODELS
from engine.models.weight_formats.plain import PLAIN
from engine.startup.loading import open_model
from engine.startup.metadata import read_metadata
from kernels.ops import torch_ops
from tests.doubles.models.int8_weights import NAME, SERVED, Int8ByChannel, quantised
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.files.int4_checkpoints import AWQ, GPTQ, PACKED
from tests.engine.rigs.hand_driven import HandDriven, build_runner, data_row, random_prompt

CPU = torch.device("cpu")
TOLERANCE = 1e-4
PROMPT = random_prompt(40)


@dataclass(frozen=True)
class Quantised:
    """A checkpoint of int8 weights, and a checkpoint of the same weights dequantised."""

    int8: Path
    written_out: Path


@pytest.fixture
def quantised_dirs(checkpoint: MakeCheckpoint, tmp_path: Path) -> Quantised:
    original = checkpoint("llama-biases").model_dir
    made = Quantised(tmp_path / "int8", tmp_path / "written-out")
    for target in (made.int8, made.written_out):
        shutil.copytree(original, target)
    packed, plain = {}, {}
    for name, tensor in load_file(original / "model.safetensors").items():
        packed[name] = plain[name] = tensor
        if name.endswith("proj.weight"):
            packed[name], packed[f"{name}_scale"] = quantised(tensor)
            plain[name] = packed[name].float() * packed[f"{name}_scale"][:, None]
    for target, tensors in ((made.int8, packed), (made.written_out, plain)):
        save_file(tensors, target / "new.safetensors")
        (target / "new.safetensors").rename(target / "model.safetensors")
    config = json.loads((original / "config.json").read_text())
    config["quantization_config"] = {"quant_method": NAME}
    (made.int8 / "config.json").write_text(json.dumps(config))
    return made


def logits(model_dir: Path) -> Tensor:
    driven = HandDriven(build_runner(model_dir, served=SERVED))
    batch = driven.batch([data_row(driven.add(PROMPT), 0, len(PROMPT))])
    every, pool = torch.arange(len(PROMPT)), driven.runner.pool.layers
    return driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, every)


def test_logits_are_those_of_the_numbers_written_out(
    checkpoint: MakeCheckpoint, quantised_dirs: Quantised
) -> None:
    got, expected = logits(quantised_dirs.int8), logits(quantised_dirs.written_out)
    assert (got - expected).abs().max() < TOLERANCE
    unquantised = logits(checkpoint("llama-biases").model_dir)
    assert (expected - unquantised).abs().max() > 10 * TOLERANCE, "rounding shows"


@pytest.mark.parametrize("weight_format", SERVED.planned_formats, ids=lambda one: one.name)
@pytest.mark.parametrize("bias", [False, True])
def test_plans_count_the_bytes_that_are_held(weight_format: WeightFormat, *, bias: bool) -> None:
    config = LinearConfig((("a", 256), ("b", 128)), 512, bias, "rows")
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        made = weight_format.linear(config, Allocator(weight_format, dtype, CPU))
        held = sum(tensor.numel() * tensor.element_size() for tensor in walk(made, Tensor))
        assert weight_format.num_bytes(config, name) == held > 0


def test_a_quarter_of_the_bytes_is_held(quantised_dirs: Quantised) -> None:
    small, large = (
        build_runner(path, served=SERVED).decoder.parameters
        for path in (quantised_dirs.int8, quantised_dirs.written_out)
    )
    tables = 2 * small.embedding.numel() * 4
    assert small.num_bytes - tables < 0.3 * (large.num_bytes - tables)


PATTERNS: dict[str, dict[str, Any]] = {
    "ignore": PACKED,
    "modules_to_not_convert": AWQ,
    "ignored_layers": {"quant_method": "fp8"},
    "dynamic": GPTQ,
}


@pytest.mark.parametrize(
    ("field", "spelling"),
    [("ignore", "re:{}"), ("modules_to_not_convert", "re:{}"), ("ignored_layers", "re:{}"),
     ("dynamic", "-:{}")],
)  # fmt: skip
def test_what_is_no_pattern_is_named_by_its_field(field: str, spelling: str) -> None:
    words = PATTERNS[field]

    def read(pattern: str) -> WeightFormat:
        names = [*words.get(field, []), spelling.format(pattern)]
        given = {key: {} for key in names} if field == "dynamic" else names
        return MODELS.formats[words["quant_method"]]({**words, field: given})

    read(".*down_proj")
    with pytest.raises(BadConfig, match=rf"quantization_config\.{field} '\*down_proj': nothing to"):
        read("*down_proj")


def test_a_format_that_is_not_entered_is_refused(quantised_dirs: Quantised) -> None:
    with pytest.raises(UnsupportedModel, match=f"quantization_config.*{NAME}"):
        read_model_config(quantised_dirs.int8)
    assert read_model_config(quantised_dirs.int8, SERVED).weight_format == Int8ByChannel()
    assert read_model_config(quantised_dirs.written_out, SERVED).weight_format == PLAIN


@pytest.mark.parametrize(
    ("suffix", "what"), [("weight", "its weight format has not"), ("weight_scale", "in no file")]
)
def test_a_tensor_that_the_format_has_not_is_named(
    quantised_dirs: Quantised, suffix: str, what: str
) -> None:
    model = read_model_config(quantised_dirs.int8, SERVED)
    load_parameters(quantised_dirs.int8, model, torch.float32, CPU)
    path, name = quantised_dirs.int8 / "model.safetensors", f"model.layers.1.mlp.up_proj.{suffix}"
    tensors = load_file(path)
    changed = tensors.pop(name).float()
    if suffix == "weight":
        tensors[name] = changed
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    with pytest.raises(CheckpointError, match=f"{name}.*{what}"):
        load_parameters(quantised_dirs.int8, model, torch.float32, CPU)


def test_blocks_of_one_format_are_not_those_of_another(checkpoint: MakeCheckpoint) -> None:
    model_dir = str(checkpoint("llama").model_dir)
    config = EngineConfig.of(
        model_dir=model_dir, socket="", device="cpu", cache_tokens=64, load_format="dummy"
    )
    metadata = read_metadata(config)
    int8 = replace(metadata, model=replace(metadata.model, weight_format=Int8ByChannel()))
    plain = open_model(config, metadata).welcome.fingerprint
    assert open_model(config, read_metadata(config)).welcome.fingerprint == plain
    assert open_model(config, int8).welcome.fingerprint != plain


def filled(linear: Linear) -> Linear:
    linear.fill(torch.Generator().manual_seed(0))
    return linear


def shard(whole: Linear, config: LinearConfig, new: Allocator, rank: int) -> Linear:
    """Return the half of `whole` that `rank` gets by its tensors' shard rules."""
    half = new.linear(config)
    for ours, theirs in zip(whole.checkpoint_tensors(), half.checkpoint_tensors(), strict=True):
        assert (ours.name, ours.shard_dim) == (theirs.name, theirs.shard_dim)
        dim = ours.shard_dim
        theirs.view.copy_(ours.view if dim is None else ours.view.chunk(2, dim)[rank])
    return half


@pytest.mark.parametrize("weight_format", [PLAIN, Int8ByChannel()])
def test_halves_of_a_matrix_cut_by_rows_give_halves_of_the_product(
    weight_format: WeightFormat,
) -> None:
    new, ops, x = Allocator(weight_format, torch.float32, CPU), torch_ops(), torch.randn(3, 16)
    config = LinearConfig((("q", 32), ("k", 8)), 16, True, "rows")
    whole = filled(new.linear(config))
    halved = replace(config, rows=(("q", 16), ("k", 4)))
    first, second = (shard(whole, halved, new, rank).product(ops, x) for rank in (0, 1))
    q, k = whole.product(ops, x).split([32, 8], -1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(torch.cat((first[:, :16], second[:, :16]), -1), q)
    torch.testing.assert_close(torch.cat((first[:, 16:], second[:, 16:]), -1), k)


@pytest.mark.parametrize("weight_format", [PLAIN, Int8ByChannel()])
def test_products_of_a_matrix_cut_by_columns_sum_to_the_product(
    weight_format: WeightFormat,
) -> None:
    new, ops, x = Allocator(weight_format, torch.float32, CPU), torch_ops(), torch.randn(3, 16)
    config = LinearConfig((("o", 8),), 16, False, "columns")
    whole = filled(new.linear(config))
    halved = replace(config, size_in=8)
    products = [
        shard(whole, halved, new, rank).product(ops, x.chunk(2, -1)[rank]) for rank in (0, 1)
    ]
    torch.testing.assert_close(products[0] + products[1], whole.product(ops, x))


def test_dummy_weights_of_any_format_are_finite(quantised_dirs: Quantised) -> None:
    model = read_model_config(quantised_dirs.int8, SERVED)
    first, again, other = (
        list(dummy_parameters(model, torch.float32, CPU, seed).tensors()) for seed in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[2], other[2])
    assert {tensor.dtype for tensor in first} == {torch.int8, torch.float32}
