"""The planner's parameter counts of well-known models equal their makers' figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.plan.decoder import read_decoder
from cli.plan.fits import weights_fits
from cli.plan.options import MemoryFlags
from engine.models.checks import check_geometry
from engine.models.served.reading import read_model_config
from tests.doubles.engine.shapes import SHAPES


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("qwen3-30b-a3b", 30.5),
        ("gpt-oss-20b", 20.9),
        ("gemma-2-9b", 9.24),
        ("gemma-3-4b", 3.88),
        ("phi-4-mini", 3.84),
    ],
)
def test_a_plan_counts_what_the_maker_gives(tmp_path: Path, name: str, billions: float) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode(SHAPES[name]))
    assert read_decoder(path).parameters / 1e9 == pytest.approx(billions, abs=0.05)
    check_geometry(read_model_config(tmp_path), block_size=16)


@pytest.mark.parametrize(
    ("name", "formats"),
    [("gpt-oss-20b", ["plain", "mxfp4"]), ("gemma-3-4b", ["plain", "fp8", "int4"])],
)
def test_formats_are_those_that_the_model_is_served_in(
    tmp_path: Path, name: str, formats: list[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(msgspec.json.encode(SHAPES[name]))
    plain, *others = weights_fits(read_decoder(path), MemoryFlags())
    assert [plain.format, *(other.format for other in others)] == formats
    assert all(other.weight_bytes < plain.weight_bytes for other in others)
