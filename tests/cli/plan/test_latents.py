"""Plans of models with latent attention have the makers' parameter counts and bytes a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.plan.decoder import DecoderCounts, read_decoder
from cli.plan.estimates import model_costs, model_rows
from storage.layouts.kv_layout import FP8
from tests.doubles.engine.shapes import SHAPES
from tests.engine.rigs.files.published import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    MISTRAL_SMALL_4,
)


def read(tmp_path: Path, config: dict[str, Any]) -> DecoderCounts:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return read_decoder(path, "bfloat16")


@pytest.mark.parametrize(
    ("config", "billions", "token_bytes"),
    [
        (DEEPSEEK_V2_LITE, 15.7, 576 * 27 * 2),
        (DEEPSEEK_V3, 671, 576 * 61 * 2),
        (SHAPES["glm-4.7-flash"], 29.9, 576 * 47 * 2),
        (MISTRAL_SMALL_4, 119, 320 * 36 * 2),
    ],
)
def test_a_plan_counts_what_the_maker_gives(
    tmp_path: Path, config: dict[str, Any], billions: float, token_bytes: int
) -> None:
    decoder = read(tmp_path, config)
    assert decoder.parameters / 1e9 == pytest.approx(billions, rel=0.004)
    decoder = decoder.without_head()
    assert decoder.kv_bytes_per_token == token_bytes
    rows = {name: (value, by) for name, value, by in model_rows(model_costs(decoder))}
    assert rows["KV of a token"] == (
        f"{token_bytes / 1024:,.0f} KiB",
        "layers x (kv_lora_rank + qk_rope_head_dim) x bytes",
    )


def test_in_fp8_a_token_has_a_scale_for_its_latent(tmp_path: Path) -> None:
    decoder = read(tmp_path, SHAPES["glm-4.7-flash"]).with_kv_in(FP8)
    assert decoder.kv_bytes_per_token == (576 + 2) * 48, "the draft head is one more layer"


def test_each_rank_keeps_all_latents(tmp_path: Path) -> None:
    decoder = read(tmp_path, SHAPES["glm-4.7-flash"])
    part = decoder.of_rank(4)
    assert part.kv_bytes_per_token == decoder.kv_bytes_per_token
    assert part.layer_parameters < 0.3 * decoder.layer_parameters
