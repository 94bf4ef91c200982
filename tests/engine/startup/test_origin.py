"""Ranks on several machines have the same files, or say that they have not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.models.errors import OtherFiles
from engine.ranks.collectives import Collectives
from engine.ranks.meeting.groups import RankGroups
from engine.startup.origin import origin_of
from engine.startup.outline import outline_model
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.ranks import on_ranks

SAME = "the same"


def other_weights(directory: Path) -> None:
    [weights] = directory.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def other_config(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.125}))


def other_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("nnodes", [1, 2])
@pytest.mark.parametrize("change", [None, other_weights, other_config, other_tokenizer])
def test_another_machine_has_the_files_of_rank_0(
    tmp_path: Path,
    checkpoint: MakeCheckpoint,
    change: Callable[[Path], None] | None,
    nnodes: int,
) -> None:
    """On one machine the files are one and the same, so nobody looks."""
    model_dir = checkpoint("llama").model_dir
    other = Path(shutil.copytree(model_dir, tmp_path / "other"))
    if change is not None:
        change(other)
    directories = model_dir, other

    def says(every: Collectives) -> str:
        config = EngineConfig(
            model_dir=str(directories[every.rank]),
            socket="",
            device="cpu",
            pipeline_parallel=2,
            nnodes=nnodes,
        )
        outline = outline_model(config, rank=every.rank)
        try:
            origin_of(config, outline, RankGroups(every, None, None, None))
        except OtherFiles as error:
            return str(error)
        return SAME

    is_noticed = nnodes == 2 and change is not None
    told = f"{other} has not the files that rank 0's machine has of the model"
    assert on_ranks(2, says) == [SAME, told if is_noticed else SAME]
