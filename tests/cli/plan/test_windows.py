"""What windows save, and what freeing KV outside of them would give, against counts by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.machine import MachineModel, break_even_tokens
from cli.plan.windows import WindowFit, window_fit
from tests.cli.console import Console
from tests.cli.plan.checkpoint import config

HALF: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "use_sliding_window": True,
    "sliding_window": 100,
    "max_window_layers": 8,
    "max_position_embeddings": 10_000,
}
ALL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 100,
    "max_position_embeddings": 10_000,
}


def windowed(path: Path, **changes: Any) -> DecoderCounts:
    return read_decoder(config(path, **changes))


def test_three_quarters_of_the_layers_with_a_window_keep_a_window_s_worth(tmp_path: Path) -> None:
    decoder = windowed(tmp_path, **HALF)
    by_hand = 1e6 * 32 * 1000 / (8 * 1000 + 24 * 100)
    assert window_fit(decoder, 1_000_000, 1000) == WindowFit(
        (100,), 24, 1000, int(by_hand), 4_000_000
    )


def test_sequences_within_the_window_free_nothing(tmp_path: Path) -> None:
    fit = window_fit(windowed(tmp_path, **HALF), 1_000_000, 100)
    assert fit is not None
    assert fit.device_tokens == 1_000_000


def test_with_windows_everywhere_there_is_no_bound(tmp_path: Path) -> None:
    fit = window_fit(windowed(tmp_path, **ALL), 1_000_000, 1000)
    assert fit == WindowFit((100,), 32, 1000, 10_000_000, None)


def attended(window: int | None, tokens: int, behind: int) -> float:
    """Positions that tokens attend to, each by itself; half a position each for its own."""
    seen = [min(position + 0.5, window or math.inf) for position in range(behind, behind + tokens)]
    return sum(seen)


@pytest.mark.parametrize(("tokens", "behind"), [(50, 0), (50, 70), (300, 20), (300, 500)])
def test_attention_counts_no_more_positions_than_the_window_has(
    tmp_path: Path, tokens: int, behind: int
) -> None:
    shape = windowed(tmp_path, **HALF).shape
    by_hand = 8 * attended(None, tokens, behind) + 24 * attended(100, tokens, behind)
    assert shape.attended_flops(tokens, behind) == pytest.approx(4 * 4096 * by_hand, rel=1e-4)


def test_a_step_reads_no_more_kv_than_the_window_has(tmp_path: Path) -> None:
    shape = windowed(tmp_path, **HALF).shape
    per_layer = 4096  # bytes of a token
    assert shape.context_costs(1000)[0] == per_layer * (8 * 1000 + 24 * 100)
    assert shape.context_costs(90)[0] == per_layer * 32 * 90


@pytest.mark.parametrize("gb_s", [0.5, 3.0, 48.0])
def test_loading_beats_computing_later_than_without_windows(tmp_path: Path, gb_s: float) -> None:
    machine, plain = MachineModel(), windowed(tmp_path).shape
    shape = windowed(tmp_path, **HALF).shape
    found = break_even_tokens(machine, shape, gb_s, setup_ms=1.0)
    assert found is not None

    def saved(tokens: int) -> float:
        load = machine.load_seconds(shape, tokens) * machine.host_gb_s / gb_s
        return machine.prefill_seconds(shape, tokens) - load - 1e-3

    assert saved(found - 1) < 0 <= saved(found)
    earlier = break_even_tokens(machine, plain, gb_s, setup_ms=1.0)
    assert earlier is not None
    assert earlier <= found


def test_with_windows_everywhere_loading_from_a_slow_disk_never_pays(tmp_path: Path) -> None:
    shape, machine = windowed(tmp_path, **ALL).shape, MachineModel()
    assert break_even_tokens(machine, shape, 0.5) is None
    assert break_even_tokens(machine, shape, 48.0) == 1


@pytest.mark.parametrize(("fields", "found"), [(HALF, True), ({}, False)])
def test_the_plan_says_it_of_such_models_alone(
    tmp_path: Path, console: Console, fields: dict[str, Any], *, found: bool
) -> None:
    path = str(config(tmp_path, **fields))
    asked = ("plan", "--model", path, "--gpu-gib", "141", "--prompt-tokens", "9000")
    printed = console.type(*asked)
    assert ("24 of 32 layers attend over 100 tokens" in printed.out) == found
    assert (console.type(*asked, "--json").json["windows"] is not None) == found
