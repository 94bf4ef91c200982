"""What freeing KV outside of windows would give, against a count by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.simulation.decoder import DecoderCounts, read_decoder
from cli.simulation.windows import WindowFit, window_fit
from tests.cli.console import Console
from tests.cli.simulation.checkpoint import config

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


@pytest.mark.parametrize(("fields", "found"), [(HALF, True), ({}, False)])
def test_the_plan_says_it_of_such_models_alone(
    tmp_path: Path, console: Console, fields: dict[str, Any], *, found: bool
) -> None:
    path = str(config(tmp_path, **fields))
    asked = ("plan", "--model", path, "--gpu-gib", "141", "--prompt-tokens", "9000")
    printed = console.type(*asked)
    assert ("24 of 32 layers attend over 100 tokens" in printed.out) == found
    assert (console.type(*asked, "--json").json["windows"] is not None) == found
