"""Estimates from a model of the machine, compared with results by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.errors import ModelNotFound
from cli.plan.decoder import read_decoder
from cli.plan.machine import MachineModel, ModelShape, break_even_tokens
from tests.cli.plan.checkpoint import config

PLAIN = ModelShape(parameters=1e9, kv_bytes_per_token=1000, attention_flops=0.0)


def test_prefill_without_attention_is_two_flops_a_parameter() -> None:
    assert MachineModel(tflops=2.0).prefill_seconds(PLAIN, 1000) == pytest.approx(1.0)


def test_attention_counts_every_position_before() -> None:
    shape = ModelShape(parameters=0.5, kv_bytes_per_token=1, attention_flops=1e9)
    machine = MachineModel(tflops=1.0)
    whole = machine.prefill_seconds(shape, 200)
    parts = machine.prefill_seconds(shape, 100) + machine.prefill_seconds(shape, 100, behind=100)
    assert whole == pytest.approx(parts)
    assert whole == pytest.approx(20000 * 1e9 / 1e12)


def test_ttft_adds_start_load_and_prefill() -> None:
    machine = MachineModel(tflops=2.0, host_gb_s=1.0, disk_gb_s=0.5, start_ms=100.0)
    # 0.1 + (100 + 2 * 200) kB / 1 GB/s + 400 tokens of 1 ms
    seconds = machine.ttft_seconds(PLAIN, 1000, 300, 100, 200)
    assert seconds == pytest.approx(0.1 + 0.0005 + 0.4)


def test_a_step_reads_weights_and_keys_or_computes_whichever_is_longer() -> None:
    shape = ModelShape(parameters=1e9, kv_bytes_per_token=1000, attention_flops=0.0, step_bytes=2e9)
    machine = MachineModel(tflops=100.0, device_gb_s=1000.0)
    assert machine.step_seconds(shape, rows=1, context=0) == pytest.approx(2e-3)
    assert machine.step_seconds(shape, rows=4, context=1000) == pytest.approx(2e-3 + 4e-6)
    assert machine.step_seconds(shape, rows=1000, context=0) == pytest.approx(2e-2)


def test_first_tokens_take_the_arithmetic_or_a_read_of_the_weights() -> None:
    shape = ModelShape(parameters=1e9, kv_bytes_per_token=1000, attention_flops=0.0, step_bytes=2e9)
    machine = MachineModel(tflops=100.0, device_gb_s=1000.0, start_ms=10.0)
    assert machine.first_tokens_seconds(shape, 4, 1000) == pytest.approx(0.01 + 0.08)
    assert machine.first_tokens_seconds(shape, 1, 8) == pytest.approx(0.01 + 0.002)


def test_the_default_step_is_within_a_sixth_of_what_an_8b_was_measured_at() -> None:
    """Compare the default step times with an 8B model's on one H200 (docs/performance.md).

    The steps have 1, 64 and 256 rows of 1,100 tokens.
    """
    for rows, ms in ((1, 4.12), (64, 6.9), (256, 14.9)):
        seconds = MachineModel().step_seconds(ModelShape(), rows, 1100)
        assert 1e3 * seconds == pytest.approx(ms, rel=1 / 6)


@pytest.mark.parametrize("gb_s", [1.0, 3.0, 20.0, 48.0])
def test_at_the_break_even_loading_takes_as_long_as_computing(gb_s: float) -> None:
    machine, shape = MachineModel(host_gb_s=gb_s), ModelShape()
    tokens = break_even_tokens(machine, shape, gb_s, setup_ms=2.0)
    assert tokens is not None

    def gain(count: int) -> float:
        return machine.prefill_seconds(shape, count) - machine.load_seconds(shape, count) - 0.002

    assert gain(tokens) >= 0 > gain(tokens - 1)


def test_a_slow_tier_never_pays_without_attention() -> None:
    machine = MachineModel(tflops=2.0)  # a token takes 1 ms to compute
    assert break_even_tokens(machine, PLAIN, 0.0009) is None
    assert break_even_tokens(machine, PLAIN, 0.002, setup_ms=1.0) == 2


def test_the_default_is_an_8b_whose_16000_tokens_take_half_a_second() -> None:
    seconds = MachineModel().prefill_seconds(ModelShape(), 16000)
    assert seconds == pytest.approx(0.5, rel=0.15)


def test_a_decoder_is_counted_from_its_config(tmp_path: Path) -> None:
    decoder = read_decoder(config(tmp_path))
    assert decoder.kv_bytes_per_token == 131072 == ModelShape().kv_bytes_per_token
    assert decoder.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert decoder.shape.attention_flops == ModelShape().attention_flops


def test_a_dtype_and_tied_embeddings_change_the_bytes(tmp_path: Path) -> None:
    plain = read_decoder(config(tmp_path))
    assert read_decoder(config(tmp_path), "float32").kv_bytes_per_token == 262144
    tied = read_decoder(config(tmp_path, tie_word_embeddings=True))
    assert plain.weight_bytes - tied.weight_bytes == 2 * 128256 * 4096
    assert read_decoder(config(tmp_path, head_dim=64)).kv_bytes_per_token == 65536


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"hidden_size": 0}, "hidden_size"), ({"torch_dtype": "int8"}, "int8")],
)
def test_a_bad_config_is_reported(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    assert len(read_decoder(config(tmp_path)).layers) == 32
    with pytest.raises(ModelNotFound, match=says):
        read_decoder(config(tmp_path, **changes))
    with pytest.raises(ModelNotFound, match="No such file"):
        read_decoder(tmp_path / "none" / "config.json")
