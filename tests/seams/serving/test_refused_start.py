"""A checkpoint with a fault in its tensors: real processes print one line, and exit with 3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.models.parameters import checkpoint_tensors, dummy_parameters
from engine.models.served.reading import read_model_config
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.ports import free_port
from tests.seams.support.ratoon import forked


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Make a complete model with one tensor too many."""
    directory = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    config = read_model_config(directory)
    parameters = dummy_parameters(config, torch.float32, torch.device("cpu"), seed=0)
    tensors = {name: one.view.clone() for name, one in checkpoint_tensors(parameters).items()}
    extra = {"audio_tower.weight": torch.zeros(4), "visual.weight": torch.zeros(4)}
    save_file({**tensors, **extra}, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("command", ["serve", "engine", "engine --tensor-parallel=2"])
def test_the_engines_own_line_is_the_only_one(
    tmp_path: Path, model_dir: Path, command: str
) -> None:
    words = [*command.split(), "--model", str(model_dir), "--data-dir", str(tmp_path / "data")]
    port = ["--port", str(free_port())] if command == "serve" else []
    log = tmp_path / "log"
    process = forked([*words, *port, "--device=cpu", "--cache-tokens=4096"], {}, log)
    try:
        status = process.wait(120)
    finally:
        process.kill()
    said = log.read_text()
    assert status == 3, said
    [line] = [line for line in said.splitlines() if "cannot" in line]
    assert line.endswith("the engine cannot start: audio_tower.weight has no place in this model")
    assert "Traceback" not in said
    assert "above" not in said
