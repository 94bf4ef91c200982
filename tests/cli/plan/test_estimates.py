"""Estimates for a 7B model without grouped heads agree with published figures on inference."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.estimates import batch_costs, batch_rows, model_costs, model_rows
from cli.plan.machine import MachineModel
from cli.plan.options import RequestFlags
from tests.cli.console import Console
from tests.doubles.engine.shapes import write_shape


@pytest.fixture
def seven_b(tmp_path: Path) -> DecoderCounts:
    return read_decoder(write_shape("llama-2-7b", tmp_path) / "config.json")


def test_a_7b_is_14_gb_and_512_kib_of_kv_a_token(seven_b: DecoderCounts) -> None:
    costs = model_costs(seven_b)
    assert costs.weight_bytes == pytest.approx(14e9, rel=0.05)
    assert costs.kv_bytes_per_token == 512 * 1024
    assert costs.flops_per_token == 2 * costs.parameters
    assert costs.layer_parameters == pytest.approx(12 * 32 * 4096**2, rel=0.01)
    assert costs.rule_of_thumb == 12 * 32 * 4096**2


def test_4096_tokens_are_2_gib_of_kv(seven_b: DecoderCounts) -> None:
    costs = batch_costs(seven_b, MachineModel(), RequestFlags(3, 4000, 96))
    assert costs.kv_bytes == 3 * 2 * 2**30


def test_a_request_is_its_first_token_and_n_more(seven_b: DecoderCounts) -> None:
    machine = MachineModel(start_ms=10.0)
    costs = batch_costs(seven_b, machine, RequestFlags(8, 1024, 100))
    prefill = machine.prefill_seconds(seven_b.shape, 1024)
    assert costs.prompt_flops == 2 * 1024 * seven_b.parameters
    assert costs.ttft_ms == pytest.approx(10 + 8e3 * prefill)
    assert costs.tpot_ms == pytest.approx(1e3 * machine.step_seconds(seven_b.shape, 8, 1074))
    assert costs.request_ms == pytest.approx(costs.ttft_ms + 100 * costs.tpot_ms)
    assert costs.output_tokens_per_s == pytest.approx(8 / costs.tpot_ms * 1e3)


def test_every_figure_has_its_formula(seven_b: DecoderCounts) -> None:
    rows = {name: (value, by) for name, value, by in model_rows(model_costs(seven_b))}
    assert rows["weights"] == ("13.5 GB", "P x 2 bytes, 12.6 GiB")
    assert rows["KV of a token"][0] == "512 KiB"
    assert rows["FLOPs of a token"] == ("13.5 G", "2 P")
    asked = batch_rows(batch_costs(seven_b, MachineModel(), RequestFlags(1, 4096, 0)))
    assert ("KV", "2.00 GiB", "1 x 4,096 tokens x KV of a token") in asked


def test_the_command_prints_them(console: Console, tmp_path: Path) -> None:
    words = ("plan", "--model", str(write_shape("llama-2-7b", tmp_path)), "--batch", "80")
    printed = console.type(*words)
    for text in ("13.5 GB", "512 KiB", "TTFT + TPOT x N", "80 at once: 1,024 tokens in, 256 out"):
        assert text in printed.out
    plan = console.type(*words, "--json").json
    assert plan["costs"]["kv_bytes_per_token"] == plan["kv_bytes_per_token"] == 524288
    assert plan["requests"]["batch"] == 80


def test_two_gpus_take_half_the_time(console: Console, tmp_path: Path) -> None:
    words = ("plan", "--model", str(write_shape("llama-2-7b", tmp_path)), "--json")
    one, two = (console.type(*words, "--start-ms", "0", "--gpus", n).json for n in ("1", "2"))
    for name in ("ttft_ms", "tpot_ms"):
        assert two["requests"][name] == pytest.approx(one["requests"][name] / 2)
