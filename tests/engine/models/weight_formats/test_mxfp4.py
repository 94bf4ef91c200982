"""Experts in mxfp4, in gpt-oss's form, have the logits of the numbers that their bits encode.

The reference is the model of `transformers`, with every number computed from its bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.models.checkpoints.weights import load_parameters
from engine.models.checks import check_served
from engine.models.errors import BadConfig, CheckpointError, UnsupportedModel
from engine.models.parameters import Parameters, dummy_parameters
from engine.models.served.reading import planned_format, read_model_config
from engine.models.shards import check_shards
from engine.models.weight_formats.mxfp4 import Mxfp4Experts, read_mxfp4
from engine.models.weight_formats.plain import PLAIN, PlainExperts
from kernels import mxfp4
from kernels.experts.four_bit_matrices import FourBitMatrix
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, Recipe, make_checkpoint
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    data_row,
    output,
    random_prompt,
    sampling,
)

CPU = torch.device("cpu")
WORDS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
SIZES = {**RECIPES["gpt-oss"].fields, "hidden_size": 64, "intermediate_size": 96}
EXPERTS = "model.layers.{}.mlp.experts."
LAYERS = 3


def number(code: int, scale: int) -> float:
    """Compute the value of an e2m1 number with an e8m0 scale from their bits."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return (-magnitude if sign else magnitude) * 2.0 ** (scale - 127)


def by_hand(blocks: Tensor, scales: Tensor) -> Tensor:
    """Dequantise (E, N, K / 32, 16) to (E, N, K) float32, number by number."""
    rows = []
    for group, scale in zip(blocks.flatten(0, 2).tolist(), scales.flatten().tolist(), strict=True):
        codes = [code for byte in group for code in (byte & 0xF, byte >> 4)]
        rows.append([number(code, scale) for code in codes])
    return torch.tensor(rows).view(*scales.shape, 32).flatten(-2)


def drawn(*shape: int) -> tuple[Tensor, Tensor]:
    """Draw random blocks and scales of a matrix (E, N, K)."""
    experts, rows, columns = shape
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
    return blocks, torch.randint(122, 126, blocks.shape[:-1], dtype=torch.uint8)


def written_out(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantise the loaded blocks (E, N, K / 32, 16) and scales (E, N, K / 32) to (E, N, K)."""
    values = torch.stack([mxfp4.values_of(one) for one in blocks])
    words = torch.stack([mxfp4.scales_of(one) for one in scales])
    matrix = FourBitMatrix("mxfp4", 32 * scales.shape[2], 32, dtype, values, words)
    experts = range(matrix.num_experts)
    return torch.stack([matrix.dequantised(expert) for expert in experts]).to(dtype)


def test_known_bytes() -> None:
    blocks = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, dtype=torch.uint8)
    scales = torch.tensor([127, 128, 120], dtype=torch.uint8)
    got = written_out(blocks.expand(1, 1, 3, 16), scales.view(1, 1, 3), torch.float32)
    once = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
    expected = torch.tensor(once * 2)
    assert torch.equal(got[0, 0], torch.cat((expected, 2 * expected, expected / 128)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_number_is_that_of_its_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    blocks, scales = drawn(2, 6, 64)
    got = written_out(blocks, scales, dtype)
    assert torch.equal(got.float(), by_hand(blocks, scales)), "no dtype has too little room"
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    assert torch.equal(got, theirs.transpose(1, 2))


def in_mxfp4(plain: Checkpoint, model_dir: Path) -> Checkpoint:
    """Replace the checkpoint's experts by random mxfp4 experts; return a reference with the same
    experts.
    """
    shutil.copytree(plain.model_dir, model_dir)
    tensors = load_file(model_dir / "model.safetensors")
    torch.manual_seed(1)
    for layer in range(LAYERS):
        prefix = EXPERTS.format(layer)
        for name in ("gate_up_proj", "down_proj"):
            experts, inputs, outputs = tensors.pop(prefix + name).shape
            blocks, scales = drawn(experts, outputs, inputs)
            tensors |= {f"{prefix}{name}_blocks": blocks, f"{prefix}{name}_scales": scales}
            parameter = plain.truth.get_parameter(prefix + name)
            parameter.data.copy_(by_hand(blocks, scales).transpose(1, 2))
    save_file(tensors, model_dir / "model.safetensors")
    say(model_dir, WORDS)
    return Checkpoint(model_dir, plain.truth)


def say(model_dir: Path, words: dict[str, Any]) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = words
    (model_dir / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("gpt-oss")
    return in_mxfp4(make_checkpoint(Recipe("GptOss", SIZES), directory / "plain"), directory / "4")


@pytest.fixture
def model_dir(shipped: Checkpoint, tmp_path: Path) -> Path:
    """Copy the checkpoint, so that a test may damage it."""
    return Path(shutil.copytree(shipped.model_dir, tmp_path / "model"))


def load(model_dir: Path) -> Parameters:
    return load_parameters(model_dir, read_model_config(model_dir), torch.float32, CPU)


def rewrite(model_dir: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = model_dir / "model.safetensors"
    save_file(change(load_file(path)), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def logits(driven: HandDriven, prompt: list[int]) -> Tensor:
    """Return logits (60, V)."""
    batch = driven.batch([data_row(driven.add(prompt), 0, 60)])
    pool = driven.runner.pool.layers
    return driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, torch.arange(60))


def test_logits_and_tokens_are_those_of_the_numbers_written_out(shipped: Checkpoint) -> None:
    driven, prompt = HandDriven(build_runner(shipped.model_dir)), random_prompt(60)
    got, expected = logits(driven, prompt), shipped.logits(prompt)
    assert expected.std() > 0.5, "logits this flat would agree whatever they are"
    assert (got - expected).abs().max() < 1e-4
    sequence = driven.add(prompt, sampling(max_tokens=64))
    driven.generate(sequence)
    assert output(sequence) == shipped.most_likely(prompt, output(sequence))


def test_what_is_kept_is_in_four_bits_as_planned(shipped: Checkpoint) -> None:
    config = read_model_config(shipped.model_dir)
    planned = planned_format(shipped.model_dir / "config.json")
    assert config.weight_format == planned
    for index, layer in enumerate(load(shipped.model_dir).layers):
        experts = layer.mlp.experts  # type: ignore[union-attr]
        assert isinstance(experts, Mxfp4Experts)
        kept = [*walk_tensors(experts.gate_up), *walk_tensors(experts.down)]
        matrices = [one for one in config.layers[index].matrices(index) if one.of_expert]
        assert sum(one.numel() * one.element_size() for one in kept) == sum(
            planned.num_bytes(matrix, "float32") for matrix in matrices
        )
        plain = sum(PLAIN.num_bytes(matrix, "bfloat16") for matrix in matrices)
        assert sum(planned.num_bytes(matrix, "bfloat16") for matrix in matrices) < plain


def walk_tensors(matrix: FourBitMatrix) -> list[Tensor]:
    assert matrix.bias is not None
    return [matrix.values, matrix.scales, matrix.bias]


def test_dummy_experts_keep_the_size_of_activations(shipped: Checkpoint) -> None:
    model = read_model_config(shipped.model_dir)
    made = dummy_parameters(model, torch.float32, CPU, seed=0)
    experts = made.layers[0].mlp.experts  # type: ignore[union-attr]
    for matrix in (experts.gate_up, experts.down):
        numbers = matrix.dequantised(0)
        assert 0.5 < numbers.std() * numbers.shape[1] ** 0.5 < 2


def test_a_scale_that_is_too_large_is_named(model_dir: Path) -> None:
    name = f"{EXPERTS.format(1)}down_proj_scales"

    def with_scale(tensors: dict[str, Tensor], scale: int) -> dict[str, Tensor]:
        tensors[name][0, 0, 0] = scale
        return tensors

    rewrite(model_dir, lambda tensors: with_scale(tensors, 128))
    load(model_dir)
    rewrite(model_dir, lambda tensors: with_scale(tensors, 129))
    with pytest.raises(CheckpointError, match=rf"{name}: a scale is 2\^2: served are at most"):
        load(model_dir)


def test_scales_may_come_before_their_blocks(model_dir: Path) -> None:
    """Read scales before or after their blocks: a shard may end between them."""
    expected = list(load(model_dir).tensors())
    tensors = load_file(model_dir / "model.safetensors")
    first = {name: tensor for name, tensor in tensors.items() if name.endswith("_scales")}
    others = {name: tensor for name, tensor in tensors.items() if name not in first}
    for number, part in enumerate((first, others), 1):
        save_file(part, model_dir / f"model-{number:05}-of-00002.safetensors")
    (model_dir / "model.safetensors").unlink()
    assert all(map(torch.equal, load(model_dir).tensors(), expected))


@pytest.mark.parametrize("part", ["blocks", "scales"])
def test_a_part_that_is_missing_is_named(model_dir: Path, part: str) -> None:
    load(model_dir)
    name = f"{EXPERTS.format(1)}down_proj_{part}"
    rewrite(model_dir, lambda tensors: {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(CheckpointError, match=f"{name}: in no file"):
        load(model_dir)


@pytest.mark.parametrize(
    ("part", "spoil", "complaint"),
    [
        (
            "scales",
            lambda t: t[:, :, :1],
            r"scales is \(4, 192, 1\), the config gives \(4, 192, 2\)",
        ),
        (
            "blocks",
            lambda t: t[:3],
            r"blocks is \(3, 192, 2, 16\), the config gives \(4, 192, 2, 16\)",
        ),
        ("scales", lambda t: t.to(torch.int8), r"scales: torch\.int8 is no mxfp4"),
        ("blocks", lambda t: t.float(), r"blocks: torch\.float32 is no mxfp4"),
        ("scales", lambda t: t.to(torch.float8_e5m2), r"scales: torch\.float8_e5m2 is no mxfp4"),
    ],
)
def test_parts_of_another_shape_or_dtype_are_named(
    model_dir: Path, part: str, spoil: Callable[[Tensor], Tensor], complaint: str
) -> None:
    load(model_dir)
    name = f"{EXPERTS.format(0)}gate_up_proj_{part}"
    rewrite(model_dir, lambda tensors: tensors | {name: spoil(tensors[name]).contiguous()})
    with pytest.raises(CheckpointError, match=f"gate_up_proj_{complaint}"):
        load(model_dir)


@pytest.mark.parametrize("listed", ["model.layers.1.mlp", "model.layers.*.mlp.experts", "experts"])
def test_experts_that_are_listed_are_plain_in_the_files(model_dir: Path, listed: str) -> None:
    def as_listed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        layers = [1] if "1" in listed else range(LAYERS)
        for layer in layers:
            for name in ("gate_up_proj", "down_proj"):
                whole = EXPERTS.format(layer) + name
                parts = tensors.pop(f"{whole}_blocks"), tensors.pop(f"{whole}_scales")
                tensors[whole] = by_hand(*parts).transpose(1, 2).contiguous()
        return tensors

    prompt = random_prompt(60)
    expected = logits(HandDriven(build_runner(model_dir)), prompt)
    say(model_dir, {**WORDS, "modules_to_not_convert": [listed]})
    with pytest.raises(CheckpointError):
        load(model_dir)
    rewrite(model_dir, as_listed)
    driven = HandDriven(build_runner(model_dir))
    assert torch.equal(logits(driven, prompt), expected), "numbers are alike, and so are their sums"
    experts = driven.runner.decoder.parameters.layers[1].mlp.experts  # type: ignore[union-attr]
    assert type(experts) is PlainExperts


def test_other_experts_than_those_of_gpt_oss_are_refused(tmp_path: Path) -> None:
    model_dir = make_checkpoint(RECIPES["mixtral"], tmp_path).model_dir
    load(model_dir)
    say(model_dir, WORDS)
    with pytest.raises(UnsupportedModel, match="'mxfp4' is served of experts that are one tensor"):
        read_model_config(model_dir)


def test_columns_that_are_no_whole_groups_are_refused_before_a_start(
    shipped: Checkpoint, tmp_path: Path
) -> None:
    sizes = {**RECIPES["gpt-oss"].fields, "hidden_size": 64, "intermediate_size": 80}
    model_dir = make_checkpoint(Recipe("GptOss", sizes), tmp_path).model_dir
    say(model_dir, WORDS)
    with pytest.raises(UnsupportedModel, match=r"of 80 columns is not whole groups of 32"):
        check_served(model_dir)
    say(model_dir, {**WORDS, "modules_to_not_convert": ["experts"]})
    check_served(model_dir)
    check_served(shipped.model_dir)


@pytest.mark.parametrize("plain", [True, False])
def test_experts_in_one_tensor_are_not_quantised_to_fp8(
    shipped: Checkpoint, model_dir: Path, *, plain: bool
) -> None:
    if plain:
        config = json.loads((model_dir / "config.json").read_text())
        del config["quantization_config"]
        (model_dir / "config.json").write_text(json.dumps(config))
    refusal = "'fp8': experts that are one tensor" if plain else "quantised already, by 'mxfp4'"
    with pytest.raises(UnsupportedModel, match=refusal):
        read_model_config(model_dir, quantization="fp8")
    assert read_model_config(shipped.model_dir).weight_format.name == "mxfp4"


@pytest.mark.parametrize("names", ["lm_head", ["("]])
def test_a_list_of_modules_that_is_none_is_named(names: object) -> None:
    with pytest.raises(BadConfig, match=r"quantization_config.*modules_to_not_convert"):
        read_mxfp4({**WORDS, "modules_to_not_convert": names})
    assert read_mxfp4(WORDS).name == "mxfp4"


def test_ranks_read_whole_groups(model_dir: Path) -> None:
    """Read whole groups on each rank: the intermediate size 96 gives three ranks 32 columns each,
    or two ranks 48.
    """
    model = read_model_config(model_dir)
    for config in model.layers[0].matrices(0):
        model.weight_format.check_shard(config)
    with pytest.raises(
        UnsupportedModel, match=r"a rank's 48 columns of .*down_proj are not whole groups of 32"
    ):
        check_shards(model, 2)
