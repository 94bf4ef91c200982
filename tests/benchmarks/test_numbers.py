"""The page's table at its smallest, and the arithmetic of a step's utilisation."""

from __future__ import annotations

import pytest

from benchmarks.engine.by_numbers import flops_of
from benchmarks.engine.in_process import opened_model
from benchmarks.engine.step import BenchShape
from benchmarks.numbers import main


def table(printed: str) -> dict[str, list[str]]:
    """The cells after the first, by the first."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    return {what: others for what, *others in rows}


def test_the_arithmetic_is_that_of_a_7b(capsys: pytest.CaptureFixture[str]) -> None:
    main(only="plan")
    found = table(capsys.readouterr().out)
    assert found["weights"] == ["14 GB", "13.5 GB", "`ratoon plan --model llama-2-7b`"]
    assert found["KV of a token"][:2] == ["512 KB", "512 KiB"]
    assert found["KV of 4,096 tokens"][:2] == ["2 GB", "2.00 GiB"]


def test_an_engine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(only="engine", quick=True)
    found = table(capsys.readouterr().out)
    for what in ("burst of 8 x 8, first tokens", "prefill of 32", "decode of 4 x 64"):
        assert found[what][1].endswith(" ms")
    assert found["prefill of 32, FLOPs used"][0] == "60-90 %"
    assert found["decode of 4 x 64, FLOPs used"][0] == "5-30 %"


def test_flops_are_two_a_parameter_and_four_a_position_and_width() -> None:
    """llama-2-tiny: 2 layers of 4 x 64 x 64 and 3 x 64 x 176 parameters, and a head of 512 x 64."""
    _, opened = opened_model("llama-2-tiny", cache_tokens=256, max_running=8)
    layers, head = 2 * (4 * 64 * 64 + 3 * 64 * 176), 512 * 64
    decode = flops_of(BenchShape("decode", (10, 20)), opened)
    assert decode == 2 * 2 * (layers + head) + 4 * 2 * 64 * 30
    prefill = flops_of(BenchShape("prefill", (), ((6, 6),)), opened)
    assert prefill == 2 * (6 * layers + head) + 4 * 2 * 64 * 18
