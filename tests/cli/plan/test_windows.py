"""The memory and time saved by sliding windows, compared with counts by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.machine import MachineModel, break_even_tokens
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


def attended(window: int | None, tokens: int, behind: int) -> float:
    """Count the positions to which tokens attend, by brute force; a token's own position counts
    half.
    """
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
    per_layer = 4096  # bytes of one token's KV
    assert shape.context_costs(1000)[0] == per_layer * (8 * 1000 + 24 * 100)
    assert shape.context_costs(90)[0] == per_layer * 32 * 90


@pytest.mark.parametrize("gb_s", [0.5, 3.0, 48.0])
def test_loading_beats_computing_later_than_without_windows(tmp_path: Path, gb_s: float) -> None:
    machine, plain = MachineModel(), windowed(tmp_path).shape
    freed = windowed(tmp_path, **HALF).shape
    shape = msgspec.structs.replace(freed, freed_bytes_per_token=0)
    found = break_even_tokens(machine, shape, gb_s, setup_ms=1.0)
    assert found is not None

    def saved(tokens: int) -> float:
        load = machine.load_seconds(shape, tokens) * machine.host_gb_s / gb_s
        return machine.prefill_seconds(shape, tokens) - load - 1e-3

    assert saved(found - 1) < 0 <= saved(found)
    earlier = break_even_tokens(machine, plain, gb_s, setup_ms=1.0)
    assert earlier is not None
    assert earlier <= found
    without_them = break_even_tokens(machine, freed, gb_s, setup_ms=1.0)
    assert without_them is not None
    assert without_them < found


def test_with_windows_everywhere_loading_from_a_slow_disk_never_pays(tmp_path: Path) -> None:
    shape, machine = windowed(tmp_path, **ALL).shape, MachineModel()
    assert break_even_tokens(machine, shape, 0.5) is None
    assert break_even_tokens(machine, shape, 48.0) == 1
