"""Metadata before loading gives each rank its part of a freed window. Stages keep windows whole."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.models.errors import WrongSetting
from engine.startup.metadata import ModelMetadata, read_metadata
from tests.engine.conftest import MakeCheckpoint


def metadata_of(
    checkpoint: MakeCheckpoint, *, rank: int = 0, tensor: int = 1, stages: int = 1
) -> ModelMetadata:
    config = EngineConfig.of(
        model_dir=str(checkpoint("gemma3").model_dir),
        socket="",
        device="cpu",
        windows="freed",
        tensor_parallel=tensor,
        pipeline_parallel=stages,
    )
    return read_metadata(config, rank=rank)


def test_each_rank_has_its_part_of_a_window(checkpoint: MakeCheckpoint) -> None:
    alone = metadata_of(checkpoint)
    parts = [metadata_of(checkpoint, rank=rank, tensor=2) for rank in range(2)]
    assert alone.rings is not None
    for part in parts:
        assert part.rings is not None
        assert part.rings.places == alone.rings.places
        assert 2 * part.rings.state_bytes == alone.rings.state_bytes
        assert 2 * part.layout.block_bytes == alone.layout.block_bytes
        assert part.state_blocks == alone.state_blocks


def test_stages_of_a_pipeline_keep_windows_whole(checkpoint: MakeCheckpoint) -> None:
    with pytest.raises(WrongSetting, match="windows freed: stages of a pipeline keep"):
        metadata_of(checkpoint, stages=2)
