"""A plan counts the memory of weights and KV in every format, and says if they do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cli.errors import BadSetting
from cli.plan.cache_plan import make_plan
from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.estimates import model_costs, model_rows
from cli.plan.fits import WeightsFit, kv_fits, tier_rows, weights_fits
from cli.plan.gpus import GPUS, on_gpu
from cli.plan.machine import GIB, MachineModel
from cli.plan.options import MemoryFlags, RequestFlags
from engine.models.layers.mlp import MlpConfig
from engine.models.modules import LinearConfig
from storage.layouts.kv_layout import FP8
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config
from tests.doubles.engine.shapes import SHAPES
from tests.doubles.models import int8_weights
from tests.engine.rigs.files.int4_checkpoints import AWQ

TABLES = 2 * 2 * 128256 * 4096  # bytes of the embedding and output tables


@pytest.fixture
def decoder(tmp_path: Path) -> DecoderCounts:
    return read_decoder(config(tmp_path))


def plain_and_int8(decoder: DecoderCounts, memory: MemoryFlags) -> tuple[WeightsFit, WeightsFit]:
    fits = {one.format: one for one in weights_fits(decoder, memory, int8_weights.SERVED)}
    planned = [one.name for one in int8_weights.SERVED.planned_formats]
    assert list(fits) == [name for name in planned if name != "mxfp4"], "which is of gpt-oss alone"
    return fits["plain"], fits[int8_weights.NAME]


def test_each_format_of_the_registry_is_weighed(decoder: DecoderCounts) -> None:
    memory = MemoryFlags(gpu_gib=24.0)
    plain, int8 = plain_and_int8(decoder, memory)
    assert plain.weight_bytes == decoder.weight_bytes
    halved = int8.weight_bytes - TABLES
    assert halved == pytest.approx((plain.weight_bytes - TABLES) / 2, rel=0.001)
    freed = plain.weight_bytes - int8.weight_bytes
    assert int8.device_tokens - plain.device_tokens == pytest.approx(0.9 * freed / 131072, abs=1)


def test_where_weights_do_not_fit_no_token_does(decoder: DecoderCounts) -> None:
    plain, int8 = plain_and_int8(decoder, MemoryFlags(gpu_gib=12.0))
    assert plain.device_tokens == 0 < int8.device_tokens


def test_what_does_not_fit_is_told_in_which_format_it_would(decoder: DecoderCounts) -> None:
    asked = decoder, MemoryFlags(gpu_gib=12.0), MachineModel(), RequestFlags()
    with pytest.raises(
        BadSetting, match=r"take 15\.0 GiB on one GPU.*; in int8_by_channel 8\.5 GiB$"
    ):
        make_plan("m", *asked, served=int8_weights.SERVED)
    roomy = replace(asked[1], gpu_gib=24.0)
    assert make_plan("m", decoder, roomy, *asked[2:], served=int8_weights.SERVED).device_tokens


def test_a_checkpoint_that_is_quantised_is_counted_as_it_is(
    decoder: DecoderCounts, tmp_path: Path
) -> None:
    quantised = replace(decoder, weight_format=int8_weights.Int8ByChannel())
    assert quantised.shape.step_bytes < 0.6 * decoder.shape.step_bytes
    assert quantised.shape.parameters == decoder.shape.parameters
    unknown = read_decoder(config(tmp_path, quantization_config={"quant_method": "hqq"}))
    assert unknown.weight_bytes == decoder.weight_bytes, "as if it were plain"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq'; served are plain"),
        ({"architectures": ["Gemma3nForConditionalGeneration"]}, "architectures ['Gemma3n"),
    ],
)
def test_a_plan_says_that_a_start_would_end(
    console: Console, tmp_path: Path, changes: dict[str, object], says: str | None
) -> None:
    path = config(tmp_path, max_position_embeddings=8192, **changes)
    planned = console.type("plan", "--model", str(path), "--json").json
    assert planned["weight_bytes"] > 0
    shown = console.type("plan", "--model", str(path)).out
    if says is None:
        assert planned["not_served"] is None
        assert "Would not be served" not in shown
    else:
        assert says in planned["not_served"]
        assert f"Would not be served: {planned['not_served']}. What is not known" in shown


def test_a_plan_says_that_its_requests_are_longer_than_the_context(
    console: Console, tmp_path: Path
) -> None:
    path = config(tmp_path, max_position_embeddings=2048)
    flags = ("plan", "--model", str(path), "--output-tokens", "48")
    planned = console.type(*flags, "--prompt-tokens", "2000", "--json").json
    assert planned["context_tokens"] == 2048
    assert "would be refused" not in console.type(*flags, "--prompt-tokens", "2000").out
    shown = console.type(*flags, "--prompt-tokens", "2001").out
    assert "context is 2,048 tokens: requests of 2,049 (--prompt-tokens, --output-tokens)" in shown


def test_narrower_kv_stands_beside_the_models_own(tmp_path: Path) -> None:
    wide = read_decoder(config(tmp_path), "float32")
    memory = MemoryFlags(host_gib=16.0)
    own, half, *_ = kv_fits(wide, memory, MachineModel())
    assert (own.dtype, own.bytes_per_token) == ("float32", 262144)
    assert half.bytes_per_token == own.bytes_per_token / 2
    assert half.host_tokens == 2 * own.host_tokens == 2 * 16 * GIB // 262144
    rows = tier_rows([own, half], computed_per_s=1.0)
    assert [row[:2] for row in rows[:4]] == [
        ("device", "float32"),
        ("host", "float32"),
        ("disk", "float32"),
        ("device", half.dtype),
    ]


def test_a_plan_takes_the_type_of_kv_that_a_server_takes(console: Console, tmp_path: Path) -> None:
    """Read the KV dtype from RATOON_KV_DTYPE, as a server does."""
    path = str(config(tmp_path))
    plain, fp8 = (
        console.type("plan", "--model", path, "--kv-dtype", name, "--json").json
        for name in ("auto", "fp8")
    )
    assert fp8["weight_bytes"] == plain["weight_bytes"]
    assert [one["dtype"] for one in fp8["kv"]] == [FP8]
    assert fp8["kv"] == plain["kv"][1:]
    assert fp8["device_tokens"] == plain["kv"][1]["device_tokens"] > plain["device_tokens"]


class Mixture(MlpConfig):
    """A mixture of eight experts, two of which compute each token."""

    def num_weights(self, hidden: int) -> int:
        return 2 * MlpConfig.num_weights(self, hidden)

    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        for expert in range(8):
            yield from MlpConfig.matrices(self, f"{prefix}{expert}.", hidden)


def test_of_a_mixture_all_weigh_and_some_compute(decoder: DecoderCounts) -> None:
    expert = 3 * 4096 * 14336 * 32
    layers = tuple(replace(layer, mlp=Mixture(14336)) for layer in decoder.layers)
    mixture = replace(decoder, layers=layers)
    assert mixture.parameters - decoder.parameters == 7 * expert
    assert mixture.active_parameters - decoder.parameters == expert
    assert mixture.weight_bytes - decoder.weight_bytes == 2 * 7 * expert
    costs = model_costs(mixture)
    assert costs.flops_per_token == 2 * mixture.active_parameters
    assert ("of them active", "13.67 B", "P of a token's FLOPs") in model_rows(costs)
    assert not any(name == "of them active" for name, *_ in model_rows(model_costs(decoder)))


def test_a_step_of_a_mixture_reads_what_its_rows_meet(decoder: DecoderCounts) -> None:
    layers = tuple(replace(layer, mlp=Mixture(14336)) for layer in decoder.layers)
    shape = replace(decoder, layers=layers).shape
    assert shape.row_bytes is not None
    assert shape.read_by(1) == shape.row_bytes < shape.step_bytes / 3
    assert shape.read_by(64) == shape.step_bytes
    dense = decoder.shape
    assert dense.read_by(1) == dense.read_by(64) == dense.step_bytes


def test_a_gpu_by_its_name_has_its_memory_and_rates() -> None:
    memory, machine = on_gpu("L4", MemoryFlags(), MachineModel(), given=())
    assert memory.gpu_gib == 24.0
    assert machine.device_gb_s < MachineModel().device_gb_s / 10
    memory, machine = on_gpu("h200", MemoryFlags(), MachineModel(), given=())
    assert (memory, machine) == (MemoryFlags(), MachineModel()), "the defaults are an H200's"
    memory, machine = on_gpu("l4", MemoryFlags(gpu_gib=20.0), MachineModel(), given={"gpu_gib"})
    assert memory.gpu_gib == 20.0


def test_the_command_takes_it_and_names_those_it_knows(console: Console, tmp_path: Path) -> None:
    words = ("plan", "--model", str(config(tmp_path)), "--json")
    named = console.type(*words, "--gpu", "l4").json
    sized = console.type(*words, "--gpu-gib", "24").json
    assert named["device_tokens"] == sized["device_tokens"]
    assert named["requests"]["tpot_ms"] > sized["requests"]["tpot_ms"]
    given = console.type(*words, "--gpu", "l4", "--device-gb-s", "3700", "--tflops", "600").json
    assert given["requests"]["tpot_ms"] == pytest.approx(sized["requests"]["tpot_ms"])
    refused = console.type(*words, "--gpu", "l5")
    assert refused.status == 2
    assert f"--gpu: 'l5' is none of {', '.join(GPUS)}" in refused.err
    with pytest.raises(BadSetting):
        on_gpu("", MemoryFlags(), MachineModel(), given=())


def test_the_plan_of_a_part_for_text_is_that_parts(tmp_path: Path) -> None:
    plain = read_decoder(config(tmp_path))
    whole = {"architectures": ["SomeForConditionalGeneration"], "torch_dtype": "bfloat16"}
    text = {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode({**whole, "text_config": text}))
    seeing = read_decoder(path)
    assert seeing.weight_bytes == plain.weight_bytes
    assert seeing.kv_bytes_per_token == plain.kv_bytes_per_token


def test_a_mixture_is_planned_in_the_formats_that_its_experts_are_served_in(
    tmp_path: Path,
) -> None:
    for name, formats in (("llama-3.1-8b", ["plain", "fp8", "int4"]),
                          ("qwen3-30b-a3b", ["plain", "fp8", "int4"]),
                          ("gpt-oss-20b", ["plain", "mxfp4"])):  # fmt: skip
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(SHAPES[name] | {"quantization_config": AWQ}))
        counted = read_decoder(path)
        assert [one.format for one in weights_fits(counted, MemoryFlags())] == formats
        assert counted.weight_format.name == ("awq" if "int4" in formats else "plain")


def test_int4_is_a_quarter_with_its_scales(decoder: DecoderCounts) -> None:
    by_format = {one.format: one.weight_bytes for one in weights_fits(decoder, MemoryFlags())}
    plain, int4 = by_format["plain"] - TABLES, by_format["int4"] - TABLES
    assert int4 == plain * (4 + 16 / 128) / 16
