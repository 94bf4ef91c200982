"""The engine's benchmark runs at its smallest size, and counts FLOPs by the formula."""

from __future__ import annotations

import json

import pytest

from benchmarks.engine.by_numbers import flops_of, main
from benchmarks.engine.in_process import opened_model
from benchmarks.engine.step import BenchShape


def test_an_engine_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main("llama-2-tiny", quick=True)
    found = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) >= {"burst of 8 x 8", "prefill of 32", "decode of 4 x 64"}
    assert all(line["ms"] > 0 for line in found.values())
    assert 0 < found["decode of 4 x 64"]["of_sheet"] < 1


def test_flops_are_two_a_parameter_and_four_a_position_and_width() -> None:
    """Count two operations per parameter and token, and four per attended position and unit of
    width.

    llama-2-tiny has 2 layers of 4 x 64 x 64 and 3 x 64 x 176 parameters; its output table has 512 x
    64.
    """
    _, opened = opened_model("llama-2-tiny", cache_tokens=256, max_running=8)
    layers, head = 2 * (4 * 64 * 64 + 3 * 64 * 176), 512 * 64
    decode = flops_of(BenchShape("decode", (10, 20)), opened)
    assert decode == 2 * 2 * (layers + head) + 4 * 2 * 64 * 30
    prefill = flops_of(BenchShape("prefill", (), ((6, 6),)), opened)
    assert prefill == 2 * (6 * layers + head) + 4 * 2 * 64 * 18
