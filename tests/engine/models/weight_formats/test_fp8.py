"""Weights in fp8: the forms of checkpoints, and logits equal to those of the rounded weights.

The reference is the model of `transformers` with every matrix dequantised, and with inputs rounded
as in the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import BadConfig, CheckpointError, ModelError, UnsupportedModel
from engine.models.layers.attention import Attention
from engine.models.modules import Allocator, LinearConfig, WeightFormat
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.weight_formats.fp8 import Fp8Format, Fp8Linear
from engine.models.weight_formats.fp8_checkpoints import read_float_quantized, read_fp8
from engine.models.weight_formats.ignored import Ignored
from engine.models.weight_formats.plain import PLAIN, PlainLinear
from engine.startup.loading import open_model
from engine.startup.metadata import read_metadata
from kernels.e4m3 import E4M3, LARGEST
from kernels.linear import fp8_rows
from kernels.linear.fp8_matrix import BLOCK, Fp8Matrix, scaled_to_e4m3
from kernels.linear.fp8_rows import Scaling
from kernels.ops import torch_ops
from tests.doubles.engine.shapes import FP8_BY_BLOCK, FP8_BY_CHANNEL
from tests.engine.rigs.checkpoints import RECIPES, Checkpoint, Recipe, in_truth, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import is_quantised, rewrite
from tests.engine.rigs.hand_driven import (
    HandDriven,
    build_runner,
    data_row,
    output,
    random_prompt,
    sampling,
)

CPU = torch.device("cpu")
TOLERANCE = 1e-4
# The largest difference of a logit after a value halfway between two e4m3 numbers was rounded the
# other way, which depends on the order in which a CPU sums.
FLIP = 0.05
PROMPT = random_prompt(40)
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 4}
RECIPE = Recipe("Llama", SIZES)
STATIC = FP8_BY_CHANNEL | {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        }
    }
}
OLDER = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
# matrices whose input another matrix reads too
SHARED = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


class RoundedLinear(nn.Module):
    """A matrix of the reference: dequantised weights and, where the engine multiplies by it,
    rounded inputs.

    The engine does not multiply by the matrix of latents' keys and values: queries and outputs
    absorb it, as in DeepSeek's own code.
    """

    def __init__(self, matrix: Fp8Matrix, by: Scaling, static: Tensor | None) -> None:
        super().__init__()
        self.weight, self._by, self._static = matrix.dequantised(), by, static
        self.bias: Tensor | None = None
        self.is_multiplied = True

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        if self.is_multiplied:
            rows = fp8_rows.reference(rows, self._by, self._static).dequantised()
        out = rows @ self.weight.T
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], -1)


@dataclass(frozen=True)
class Kind:
    """A form of fp8 matrices: its config fields, its tensors beside the weight, and its
    reference.
    """

    words: dict[str, Any]
    keep: Callable[[str, Tensor], tuple[dict[str, Tensor], RoundedLinear]]


def by_channel(name: str, weight: Tensor) -> tuple[dict[str, Tensor], RoundedLinear]:
    values, scales = scaled_to_e4m3(weight)
    # files have column scales as (N,) or as (N, 1)
    kept = scales if "mlp" in name else scales[:, 0]
    truth = RoundedLinear(Fp8Matrix(values, scales, by_block=False), "token", None)
    return {"weight": values, "weight_scale": kept}, truth


def by_tensor(name: str, weight: Tensor) -> tuple[dict[str, Tensor], RoundedLinear]:
    scale = weight.abs().max() / LARGEST
    values = (weight / scale).to(E4M3)
    # matrices that share an input use the largest of their scales
    given = torch.tensor(0.02 if "q_proj" in name or "up_proj" in name else 0.01)
    used = torch.tensor([0.02 if name.endswith(SHARED) else 0.01])
    matrix = Fp8Matrix(values, scale.expand(weight.shape[0], 1), by_block=False)
    kept = {"weight": values, "weight_scale": scale, "input_scale": given}
    return kept, RoundedLinear(matrix, "token", used)


def by_block(_: str, weight: Tensor) -> tuple[dict[str, Tensor], RoundedLinear]:
    rows, columns = weight.shape[0] // BLOCK, weight.shape[1] // BLOCK
    blocks = weight.view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    values = (blocks / scales[:, None, :, None]).view(weight.shape).to(E4M3)
    truth = RoundedLinear(Fp8Matrix(values, scales, by_block=True), "group", None)
    return {"weight": values, "weight_scale_inv": scales}, truth


KINDS = {
    "channel": Kind(FP8_BY_CHANNEL, by_channel),
    "tensor-static": Kind(STATIC, by_tensor),
    "fp8-static": Kind(OLDER, by_tensor),
    "block": Kind(FP8_BY_BLOCK | {"modules_to_not_convert": ["lm_head"]}, by_block),
}


def make_quantised(kind: Kind, model_dir: Path, recipe: Recipe = RECIPE) -> Checkpoint:
    """Make a checkpoint of this form, and its reference."""
    made = make_checkpoint(recipe, model_dir)
    tensors = dict(load_file(model_dir / "model.safetensors"))
    for name in [name for name in tensors if is_quantised(name)]:
        module = name.removesuffix(".weight")
        kept, rounded = kind.keep(module, tensors.pop(name))
        tensors |= {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in kept.items()}
        rounded.is_multiplied = not module.endswith("kv_b_proj")
        rounded.bias = made.truth.get_submodule(in_truth(module)).bias
        made.truth.set_submodule(in_truth(module), rounded)
    save_file(tensors, model_dir / "new.safetensors")
    (model_dir / "new.safetensors").rename(model_dir / "model.safetensors")
    say(model_dir, kind.words)
    return made


def say(model_dir: Path, words: dict[str, Any]) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = words
    (model_dir / "config.json").write_text(json.dumps(config))


@pytest.fixture(params=KINDS)
def quantised(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    return make_quantised(KINDS[request.param], tmp_path)


def logits(model_dir: Path, tokens: list[int] = PROMPT) -> Tensor:
    driven = HandDriven(build_runner(model_dir))
    return driven.logits([data_row(driven.add(tokens), 0, len(tokens))])


def test_logits_are_those_of_the_rounded_numbers(quantised: Checkpoint, tmp_path: Path) -> None:
    got, wanted = logits(quantised.model_dir), quantised.logits(PROMPT)
    assert (got - wanted).abs().max() < TOLERANCE
    plain = make_checkpoint(RECIPE, tmp_path / "plain").logits(PROMPT)
    assert (wanted - plain).abs().max() > 100 * TOLERANCE, "rounding shows"


def test_sixty_four_greedy_tokens(quantised: Checkpoint) -> None:
    expect_greedy(quantised)


def compared(model_dir: Path, truth: Checkpoint) -> tuple[int, Tensor]:
    """Count the tokens, of 64, that the reference would choose too; return their log-probabilities'
    differences.

    The reference gets the same tokens, and computes the same number of rows at a time.
    """
    driven = HandDriven(build_runner(model_dir))
    sequence = driven.add(PROMPT, sampling(64, num_logprobs=0))
    given = driven.generate(sequence)
    tokens = torch.tensor(output(sequence))
    wanted = truth.decoded(PROMPT, tokens.tolist())
    found = torch.tensor([one.chosen for one in given if one is not None])
    chosen = wanted.log_softmax(-1)[torch.arange(64), tokens]
    return int((wanted.argmax(-1) == tokens).sum()), (found - chosen).abs()


def expect_greedy(checkpoint: Checkpoint) -> None:
    """Check that all tokens and log-probabilities equal the reference's, except for a few
    differences up to `FLIP`.
    """
    equal, differences = compared(checkpoint.model_dir, checkpoint)
    assert equal == 64
    assert (differences < TOLERANCE).sum() >= 60
    assert differences.max() < FLIP


def test_matrices_are_kept_as_they_are(quantised: Checkpoint) -> None:
    parameters = build_runner(quantised.model_dir).decoder.parameters
    layer = parameters.layers[0]
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.mixer.qkv, Fp8Linear)
    assert layer.mixer.qkv.weight.values.dtype == E4M3
    assert parameters.head.dtype == torch.float32
    numbers = sum(one.numel() for one in parameters.tensors() if one.dtype == E4M3)
    assert parameters.num_bytes - numbers < 1.2 * 4 * (2 * parameters.head.numel())


def test_plain_weights_are_quantised_as_they_are_loaded(tmp_path: Path) -> None:
    make_checkpoint(RECIPE, tmp_path / "plain")
    saved = make_quantised(KINDS["channel"], tmp_path / "saved")
    online = read_model_config(tmp_path / "plain", quantization="fp8")
    loaded = load_parameters(tmp_path / "plain", online, torch.float32, CPU)
    wanted = load_parameters(
        saved.model_dir, read_model_config(saved.model_dir), torch.float32, CPU
    )
    for got, right in zip(loaded.tensors(), wanted.tensors(), strict=True):
        assert torch.equal(got.float(), right.float())


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_model_that_sees_the_text_model_may_be_in_fp8(tmp_path: Path, prefix: str) -> None:
    """Read a vision model's fp8 text model as llm-compressor writes Gemma 3.

    The config lists the vision tower as unquantised; the engine does not read that tower.
    """
    recipe = replace(RECIPES["gemma3"], fields={**RECIPES["gemma3"].fields, **SIZES})
    made = make_quantised(KINDS["channel"], tmp_path, recipe)
    tensors = load_file(tmp_path / "model.safetensors")
    below = {"model.": prefix, "lm_head.": "language_model.lm_head."}
    renamed = {
        below[first] + name.removeprefix(first): tensor
        for name, tensor in tensors.items()
        for first in below
        if name.startswith(first)
    }
    tower = {"vision_tower.encoder.layers.0.mlp.fc1.weight": torch.zeros(4, 4)}
    rewrite(tmp_path, {**renamed, **tower})
    text = json.loads((tmp_path / "config.json").read_text())
    words = {**text.pop("quantization_config"), "ignore": ["re:.*lm_head", "re:vision_tower.*"]}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "quantization_config": words}
    (tmp_path / "config.json").write_text(json.dumps({**whole, "text_config": text}))
    assert (logits(tmp_path) - made.logits(PROMPT)).abs().max() < TOLERANCE


def test_what_is_quantised_already_is_not_quantised_again(quantised: Checkpoint) -> None:
    read_model_config(quantised.model_dir)
    with pytest.raises(UnsupportedModel, match="quantised already"):
        read_model_config(quantised.model_dir, quantization="fp8")


def test_a_scale_that_is_missing_is_named(tmp_path: Path) -> None:
    model_dir = make_quantised(KINDS["channel"], tmp_path).model_dir
    model, path = read_model_config(model_dir), model_dir / "model.safetensors"
    load_parameters(model_dir, model, torch.float32, CPU)
    tensors = dict(load_file(path))
    del tensors["model.layers.1.mlp.up_proj.weight_scale"]
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight_scale.*in no file"):
        load_parameters(model_dir, model, torch.float32, CPU)


def test_blocks_of_kv_are_of_one_format(tmp_path: Path) -> None:
    make_checkpoint(RECIPE, tmp_path)
    config = EngineConfig.of(
        model_dir=str(tmp_path), socket="", device="cpu", cache_tokens=64, load_format="dummy"
    )
    formats: list[WeightFormat] = [
        PLAIN,
        *(read(words) for words, read in SERVED),
        Fp8Format("fp8", "block", "group"),
    ]
    found = set()
    for one in formats:
        metadata = read_metadata(config)
        model = replace(metadata.model, weight_format=one)
        found.add(open_model(config, replace(metadata, model=model)).welcome.fingerprint)
    assert len(found) == len(formats)
    again = open_model(config, read_metadata(config)).welcome.fingerprint
    assert again in found


SERVED: list[tuple[dict[str, Any], Callable[[dict[str, Any]], Fp8Format]]] = [
    (FP8_BY_CHANNEL, read_float_quantized),
    (STATIC, read_float_quantized),
    (OLDER, read_fp8),
    (FP8_BY_BLOCK, read_fp8),
]


def changed(words: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(words))
    *parents, last = path.split("/")
    place = copy
    for one in parents:
        place = place[one]
    place[last] = value
    return copy


GROUP = "config_groups/group_0"
REFUSED = [
    (FP8_BY_CHANNEL, "format", "int-quantized", "format"),
    (FP8_BY_CHANNEL, "sparsity_config", {"format": "sparse-24-bitmask"}, "sparsity_config"),
    (FP8_BY_CHANNEL, "ignore", [], "ignore"),
    (FP8_BY_CHANNEL, "transform_config", {"config_groups": {"r1": {}}}, "transform_config"),
    (FP8_BY_CHANNEL, f"{GROUP}/output_activations", {"num_bits": 8}, "output_activations"),
    (FP8_BY_CHANNEL, f"{GROUP}/targets", ["re:.*q_proj"], "targets"),
    (FP8_BY_CHANNEL, f"{GROUP}/weights/num_bits", 4, "weights"),
    (FP8_BY_CHANNEL, f"{GROUP}/weights/strategy", "group", "weights.strategy"),
    (FP8_BY_CHANNEL, f"{GROUP}/input_activations", None, "input_activations"),
    (FP8_BY_CHANNEL, f"{GROUP}/input_activations/type", "int", "input_activations"),
    (FP8_BY_CHANNEL, f"{GROUP}/input_activations/dynamic", False, "input_activations"),
    (FP8_BY_BLOCK, "weight_block_size", [64, 64], "weight_block_size"),
    (FP8_BY_BLOCK, "activation_scheme", "static", "activation_scheme"),
    (FP8_BY_BLOCK, "fmt", "e5m2", "fmt"),
]


@pytest.mark.parametrize(("words", "path", "value", "named"), REFUSED)
def test_what_is_not_computed_is_refused_by_its_field(
    words: dict[str, Any], path: str, value: object, named: str
) -> None:
    read = read_fp8 if words["quant_method"] == "fp8" else read_float_quantized
    read(words)
    with pytest.raises(UnsupportedModel, match=rf"quantization_config\.{named}.*served"):
        read(changed(words, path, value))


@pytest.mark.parametrize("name", ["lm_head", "re:.*lm_head", "language_model.lm_head"])
def test_a_head_that_is_plain_may_be_named_in_several_ways(name: str) -> None:
    read = read_float_quantized(changed(FP8_BY_CHANNEL, "ignore", ["model.layers.0", name]))
    assert read.name == "compressed-tensors"


def test_a_config_that_is_malformed_is_bad() -> None:
    with pytest.raises(BadConfig, match=r"quantization_config.*config_groups"):
        read_float_quantized(changed(FP8_BY_CHANNEL, "config_groups/group_0", 3))


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        ((), False),
        (("lm_head",), False),
        (("model.layers.0.mlp.down_proj",), True),
        (("re:.*down_proj$",), True),
        (("model.layers.0",), True),
        (("mlp",), True),
        (("down",), False),
        (("model.layers.1.mlp.down_proj",), False),
    ],
)
def test_matrices_that_are_left_plain(names: tuple[str, ...], plain: bool) -> None:
    weight_format = Fp8Format("fp8", "channel", "token", Ignored(names))
    config = LinearConfig((("model.layers.0.mlp.down_proj", 8),), 16, False, "columns")
    made = weight_format.linear(config, Allocator(weight_format, torch.float32, CPU))
    assert isinstance(made, PlainLinear if plain else Fp8Linear)


@pytest.mark.parametrize(
    ("weight_format", "rows", "named"),
    [
        (Fp8Format("fp8", "channel", "token", Ignored(("a.q",))), (128, 128), "a.q is plain"),
        (Fp8Format("fp8", "block", "group"), (130, 128), "weight_block_size"),
    ],
)
def test_matrices_that_cannot_be_one_are_refused(
    weight_format: Fp8Format, rows: tuple[int, int], named: str
) -> None:
    new = Allocator(weight_format, torch.float32, CPU)
    fits = LinearConfig((("b.q", 128), ("b.k", 128)), 128, False, "rows")
    weight_format.linear(fits, new)
    config = LinearConfig((("a.q", rows[0]), ("a.k", rows[1])), 128, False, "rows")
    with pytest.raises(ModelError, match=named):
        weight_format.linear(config, new)


@pytest.mark.parametrize(
    "weight_format",
    [Fp8Format("fp8", "channel", "token"), Fp8Format("fp8", "block", "group")],
    ids=["channel", "block"],
)
def test_dummy_weights_keep_the_size_of_activations(weight_format: Fp8Format) -> None:
    made = weight_format.linear(
        LinearConfig((("a", 512),), 1024, False, "rows", in_parts=False),
        Allocator(PLAIN, torch.float32, CPU),
    )
    made.fill(torch.Generator().manual_seed(0))
    product = made.product(torch_ops(), torch.randn(16, 1024))
    assert 0.5 < float(product.std()) < 2.0


def test_dummy_models_differ_by_seed(tmp_path: Path) -> None:
    model_dir = make_quantised(KINDS["channel"], tmp_path).model_dir
    model = read_model_config(model_dir)
    one, again, other = (
        list(dummy_parameters(model, torch.float32, CPU, seed).tensors()) for seed in (0, 0, 1)
    )
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[2].float(), other[2].float())
    assert all(torch.isfinite(tensor.float()).all() for tensor in one)
