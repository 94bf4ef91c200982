"""Every form of int4 checkpoints has the logits of its dequantised weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import EngineConfig
from engine.models.checkpoints.weights import load_parameters
from engine.models.errors import BadConfig, CheckpointError, ModelError, UnsupportedModel
from engine.models.modules import Allocator, LinearConfig, WeightFormat, walk
from engine.models.parameters import dummy_parameters
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED
from engine.models.weight_formats.ignored import Ignored
from engine.models.weight_formats.int4 import Int4Format, Int4Linear
from engine.models.weight_formats.int4_forms import Form
from engine.models.weight_formats.plain import PLAIN, PlainExperts, PlainLinear
from engine.startup.loading import open_model
from engine.startup.metadata import read_metadata
from kernels.ops import torch_ops
from tests.engine.rigs.checkpoints import RECIPES, Recipe, make_checkpoint
from tests.engine.rigs.files.int4_checkpoints import (
    AWQ,
    GPTQ,
    KINDS,
    PACKED,
    SIZES,
    Int4Checkpoint,
    draw,
    make_int4,
    packed_words,
    rewrite,
    say,
)
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
PROMPT = random_prompt(40)
BIASED = Recipe("Llama", SIZES | {"attention_bias": True})


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Int4Checkpoint:
    """Make a checkpoint of each form; that of AWQ also has biases."""
    kind = request.param
    return make_int4(KINDS[kind], tmp_path, BIASED if kind == "awq" else None)


def logits(
    model_dir: Path,
    prompt: list[int] = PROMPT,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    driven = HandDriven(build_runner(model_dir, device=device, dtype=dtype))
    batch = driven.batch([data_row(driven.add(prompt), 0, len(prompt))])
    every, pool = torch.arange(len(prompt), device=device), driven.runner.pool.layers
    return driven.runner.decoder.logits(batch.token_ids, batch.layout, pool, every)


def generated(model_dir: Path, most: int = 64) -> tuple[list[int], list[float]]:
    """Return greedy tokens and their log-probabilities."""
    driven = HandDriven(build_runner(model_dir))
    sequence = driven.add(PROMPT, sampling(most, num_logprobs=0))
    logprobs = driven.generate(sequence)
    return output(sequence), [one.chosen for one in logprobs if one is not None]


def test_logits_and_greedy_tokens_are_those_of_the_numbers_written_out(
    made: Int4Checkpoint, tmp_path: Path
) -> None:
    wanted = made.int4.logits(PROMPT)
    assert (logits(made.int4.model_dir) - wanted).abs().max() < TOLERANCE
    tokens, logprobs = generated(made.int4.model_dir)
    plain_tokens, plain_logprobs = generated(made.written_out)
    assert tokens == plain_tokens
    assert len(tokens) == len(logprobs) == 64
    assert max(abs(a - b) for a, b in zip(logprobs, plain_logprobs, strict=True)) < TOLERANCE
    other = make_checkpoint(Recipe("Llama", SIZES), tmp_path / "other").logits(PROMPT)
    assert (wanted - other).abs().max() > 100 * TOLERANCE, "integers show"


def test_integers_are_kept_as_they_are(made: Int4Checkpoint) -> None:
    parameters = build_runner(made.int4.model_dir).decoder.parameters
    matrices = list(walk(parameters.layers, Int4Linear))
    assert len(matrices) == 4 * 3
    weights = sum(one.config.size_out * one.config.size_in for one in matrices)
    held = sum(one.weight.values.numel() * 2 for one in matrices)
    assert held * 2 == weights
    assert parameters.head.dtype == torch.float32
    written_out = build_runner(made.written_out).decoder.parameters
    assert written_out.num_bytes - parameters.num_bytes > 3 * weights


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_divided_as_what_is_kept_of_them(kind: str) -> None:
    """Divide the tensors of files as the loaded tensors are divided: each rank reads only its own
    slice.
    """
    form, integers = KINDS[kind], draw(64, 512, KINDS[kind].group, 0, least=KINDS[kind].least)
    files = {f"a.{suffix}": tensor for suffix, tensor in form.pack(integers).items()}
    new = Allocator(format_of(form.words), torch.float32, CPU)

    def part(config: LinearConfig, rank: int) -> Tensor:
        half = new.linear(config)
        for tensor in half.checkpoint_tensors():
            given = files.get(tensor.name)
            if given is None:
                assert not tensor.required
                continue
            own = given if tensor.shard_dim is None else given.chunk(2, tensor.shard_dim)[rank]
            kept = own if tensor.convert is None else tensor.convert(own)
            tensor.view.copy_(kept)
        return half.product(torch_ops(), torch.eye(config.size_in)).T

    by_rows = LinearConfig((("a", 32),), 512, False, "rows")
    by_columns = LinearConfig((("a", 64),), 256, False, "columns")
    wanted = integers.written_out()
    assert torch.equal(torch.cat([part(by_rows, rank) for rank in (0, 1)], 0), wanted)
    assert torch.equal(torch.cat([part(by_columns, rank) for rank in (0, 1)], 1), wanted)


@pytest.mark.parametrize(
    ("rows", "columns", "shards", "named"),
    [
        (12, 256, "rows", "a rank's 12 rows of a in int4: served are multiples of 8"),
        (16, 64, "columns", "a has 64 columns"),
    ],
)
def test_parts_that_files_do_not_divide_into_are_refused(
    rows: int, columns: int, shards: Literal["rows", "columns"], named: str
) -> None:
    made = Int4Format("awq", "awq", 128, has_zeros=True)
    made.check_shard(LinearConfig((("a", 16),), 128, False, shards))
    part = LinearConfig((("a", rows),), columns, False, shards)
    with pytest.raises(UnsupportedModel, match=named):
        made.check_shard(part)
    replace(made, ignored=Ignored(("a",))).check_shard(part)


def format_of(words: dict[str, Any]) -> WeightFormat:
    return SERVED.formats[words["quant_method"]](words)


def test_blocks_of_kv_are_of_one_format(tmp_path: Path) -> None:
    make_checkpoint(Recipe("Llama", SIZES), tmp_path)
    config = EngineConfig.of(
        model_dir=str(tmp_path), socket="", device="cpu", cache_tokens=64, load_format="dummy"
    )
    formats: list[WeightFormat] = [PLAIN, *(format_of(kind.words) for kind in KINDS.values())]
    found = set()
    for one in formats:
        metadata = read_metadata(config)
        model = replace(metadata.model, weight_format=one)
        found.add(open_model(config, replace(metadata, model=model)).welcome.fingerprint)
    assert len(found) == len(formats)
    again = open_model(config, read_metadata(config)).welcome.fingerprint
    assert again in found


GROUP = "config_groups/group_0"
REFUSED: list[tuple[dict[str, Any], str, object, str]] = [
    (AWQ, "bits", 8, "bits"),
    (AWQ, "group_size", -1, "group_size"),
    (AWQ, "version", "gemv", "version"),
    (AWQ, "zero_point", False, "zero_point"),
    (GPTQ, "bits", 3, "bits"),
    (GPTQ, "group_size", 1024, "group_size"),
    (GPTQ, "desc_act", True, "desc_act"),
    (GPTQ, "checkpoint_format", "bitblas", "checkpoint_format"),
    (GPTQ, "is_marlin_format", True, "checkpoint_format 'marlin'"),
    (GPTQ, "lm_head", True, "lm_head"),
    (GPTQ, "dynamic", {"+:.*down.*": {"bits": 8}}, "dynamic"),
    (GPTQ, "modules_in_block_to_quantize", [["mlp.up_proj"]], "modules_in_block_to_quantize"),
    (PACKED, "format", "marlin-24", "format"),
    (PACKED, "format", ["pack-quantized"], "format"),
    (PACKED, f"{GROUP}/targets", ["re:.*q_proj"], "targets"),
    (PACKED, f"{GROUP}/weights/num_bits", 8, "weights"),
    (PACKED, f"{GROUP}/weights/type", "float", "weights"),
    (PACKED, f"{GROUP}/weights/strategy", "channel", "weights.strategy"),
    (PACKED, f"{GROUP}/weights/group_size", 16, "weights.group_size"),
    (PACKED, f"{GROUP}/weights/actorder", "group", "weights.actorder"),
    (PACKED, f"{GROUP}/weights/dynamic", True, "weights.dynamic"),
    (PACKED, f"{GROUP}/input_activations", {"num_bits": 8, "type": "int", "strategy": "token"},
     "input_activations"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "path", "value", "named"), REFUSED)
def test_what_is_not_computed_is_refused_by_its_field(
    words: dict[str, Any], path: str, value: object, named: str
) -> None:
    format_of(words)
    spoilt: dict[str, Any] = json.loads(json.dumps(words))
    *parents, last = path.split("/")
    place = spoilt
    for one in parents:
        place = place[one]
    place[last] = value
    with pytest.raises(UnsupportedModel, match=rf"quantization_config\.{named}.*served"):
        format_of(spoilt)


def test_the_newer_form_of_gptq_has_two_spellings() -> None:
    older, newer = ({**GPTQ, name: "gptq_v2"} for name in ("checkpoint_format", "format"))
    assert format_of(older) == format_of(newer) != format_of(GPTQ)


def test_orders_that_keep_columns_in_place_are_served() -> None:
    assert format_of({**GPTQ, "desc_act": True, "static_groups": True}) == format_of(GPTQ)
    assert format_of(packed_words(actorder="weight")) == format_of(PACKED)


def test_older_files_of_compressed_tensors_name_it_otherwise(tmp_path: Path) -> None:
    make_checkpoint(Recipe("Llama", SIZES), tmp_path)
    path = tmp_path / "config.json"
    plain = json.loads(path.read_text())
    assert read_model_config(tmp_path).weight_format == PLAIN
    path.write_text(json.dumps({**plain, "compression_config": PACKED}))
    found = read_model_config(tmp_path).weight_format
    assert isinstance(found, Int4Format)
    # The files list unquantised matrices by bare names, so no prefix of the head is compared.
    plain_names = replace(found.ignored, prefixes=())
    assert replace(found, ignored=plain_names) == format_of(PACKED)


def test_a_config_that_is_malformed_is_bad() -> None:
    with pytest.raises(BadConfig, match=r"quantization_config.*bits"):
        format_of({**AWQ, "bits": "four"})


NAME = "model.layers.1.mlp.up_proj"
SPOILT: list[tuple[str, str, Callable[[Tensor], Tensor | None], str]] = [
    ("awq", "scales", lambda _: None, "scales.*in no file"),
    ("awq", "qzeros", lambda _: None, "qzeros.*in no file"),
    ("awq", "qweight", lambda one: one[:, :-1], r"qweight is \(128, 31\), the config gives"),
    ("awq", "qweight", lambda one: one[:-1], r"qweight is \(127, 32\), the config gives"),
    ("gptq", "qweight", lambda one: one[:-1], r"qweight is \(15, 256\), the config gives"),
    ("awq", "qzeros", lambda one: one[:-1], r"qzeros is \(0, 32\), the config gives"),
    ("awq", "qweight", lambda one: one.long(), r"qweight: .*int64: served are words of int32"),
    ("gptq-asym", "g_idx", lambda one: one.flip(0), "g_idx: served is groups of columns in order"),
    ("gptq-asym", "g_idx", lambda one: one[0], "g_idx: served is groups of columns in order"),
    ("gptq-asym", "qzeros", lambda one: one[:0], r"qzeros is \(0, 32\), the config gives"),
    ("gptq", "bias", lambda one: one + 1, "bias: served is zeros"),
    ("gptq", "qzeros", lambda one: one + 1, "qzeros: served is zero points of 8, as sym says"),
    ("packed", "weight_packed", lambda _: None, "weight_packed.*in no file"),
    ("packed", "weight_scale", lambda one: one.byte(), "uint8, which its weight format has not"),
]


@pytest.mark.parametrize(("kind", "suffix", "spoil", "says"), SPOILT)
def test_tensors_that_say_something_else_end_the_start(
    kind: str, suffix: str, spoil: Callable[[Tensor], Tensor | None], says: str, tmp_path: Path
) -> None:
    model_dir = make_int4(KINDS[kind], tmp_path).int4.model_dir
    model = read_model_config(model_dir)
    load_parameters(model_dir, model, torch.float32, CPU)
    tensors = dict(load_file(model_dir / "model.safetensors"))
    spoilt = spoil(tensors.pop(f"{NAME}.{suffix}"))
    if spoilt is not None:
        tensors[f"{NAME}.{suffix}"] = spoilt.contiguous()
    rewrite(model_dir, tensors)
    with pytest.raises(CheckpointError, match=says):
        load_parameters(model_dir, model, torch.float32, CPU)


@pytest.mark.parametrize(
    "words",
    [
        {**AWQ, "modules_to_not_convert": ["layers.0.mlp"]},
        {**GPTQ, "dynamic": {r"-:model\.layers\.0\.mlp.*": {}}},
        {**PACKED, "ignore": ["lm_head", "re:model.layers.0.mlp"]},
    ],
    ids=lambda words: str(words["quant_method"]),
)
def test_matrices_that_are_named_are_plain(words: dict[str, Any]) -> None:
    weight_format = format_of(words)
    new = Allocator(weight_format, torch.float32, CPU)
    for layer, kind in ((0, PlainLinear), (1, Int4Linear)):
        rows = ((f"model.layers.{layer}.mlp.down_proj", 128),)
        made = weight_format.linear(LinearConfig(rows, 256, False, "columns"), new)
        assert isinstance(made, kind)


def test_columns_that_are_no_whole_runs_are_refused() -> None:
    weight_format = format_of(AWQ)
    new = Allocator(weight_format, torch.float32, CPU)
    weight_format.linear(LinearConfig((("a.b", 64),), 256, False, "rows"), new)
    with pytest.raises(ModelError, match=r"a\.b has 192 columns.*multiples of 128"):
        weight_format.linear(LinearConfig((("a.b", 64),), 192, False, "rows"), new)


def test_experts_of_no_whole_groups_are_refused_and_plain_ones_served(tmp_path: Path) -> None:
    made = make_checkpoint(RECIPES["qwen3-moe"], tmp_path)
    everywhere = ["lm_head", "re:.*self_attn.*", "re:.*layers.1.mlp.*"]
    say(tmp_path, {**PACKED, "ignore": [*everywhere, "re:.*experts.*"]})
    parameters = load_parameters(made.model_dir, read_model_config(tmp_path), torch.float32, CPU)
    assert list(walk(parameters.layers, PlainExperts))
    say(tmp_path, {**PACKED, "ignore": everywhere})
    with pytest.raises(UnsupportedModel, match=r"experts\.0\.gate_proj has 48 columns: of experts"):
        load_parameters(made.model_dir, read_model_config(tmp_path), torch.float32, CPU)


@pytest.mark.parametrize("has_zeros", [True, False])
def test_dummy_weights_keep_the_size_of_activations(has_zeros: bool) -> None:
    form: Form = "pack-quantized"
    weight_format = Int4Format("int4", form, 128, has_zeros)
    config = LinearConfig((("a", 512),), 1024, False, "rows", in_parts=False)
    made = weight_format.linear(config, Allocator(PLAIN, torch.float32, CPU))
    made.fill(torch.Generator().manual_seed(0))
    product = made.product(torch_ops(), torch.randn(16, 1024))
    assert 0.5 < float(product.std()) < 2.0


def test_dummy_models_differ_by_seed(tmp_path: Path) -> None:
    make_checkpoint(Recipe("Llama", SIZES), tmp_path)
    say(tmp_path, AWQ)
    model = read_model_config(tmp_path)
    one, again, other = (
        list(dummy_parameters(model, torch.float32, CPU, seed).tensors()) for seed in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[2].float(), other[2].float())
    assert all(math.isfinite(float(tensor.float().sum())) for tensor in one)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [40, 200])  # each prompt length uses another kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_on_the_device_logits_are_as_near_as_those_of_plain_weights(
    length: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Compare logits on the device with those of dequantised weights.

    The scales are float16, so bfloat16 rounds them.
    """
    made, prompt = make_int4(KINDS["awq"], tmp_path), random_prompt(length)
    got, wanted, exact = (
        logits(one, prompt, *where).cpu().float()
        for one, where in (
            (made.int4.model_dir, (torch.device("cuda"), dtype)),
            (made.written_out, (torch.device("cuda"), dtype)),
            (made.written_out, (CPU, torch.float32)),
        )
    )
    assert (got - exact).norm() < 2 * (wanted - exact).norm()
