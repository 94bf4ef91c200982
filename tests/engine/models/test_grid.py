"""A grid of pipeline stages, each of which has ranks that divide its layers, and refused grids."""

from __future__ import annotations

import pytest

from engine.models.checks import check_ranks
from engine.models.errors import UnsupportedModel
from engine.models.grid import RankGrid
from engine.models.served.reading import read_model_config
from tests.engine.conftest import MakeCheckpoint


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (RankGrid(2, 3), ""),
        (RankGrid(1, 4), "pipeline_parallel 4: the model has 3 layers"),
        (RankGrid(3, 2), "tensor_parallel 3 does not divide num_attention_heads 4"),
        (RankGrid(4, 3), "tensor_parallel 4 x pipeline_parallel 3: there are 8 ranks at most"),
    ],
)
def test_what_does_not_divide_is_refused_by_name(
    checkpoint: MakeCheckpoint, grid: RankGrid, says: str
) -> None:
    model = read_model_config(checkpoint("llama").model_dir)
    if not says:
        check_ranks(model, 16, grid)
        return
    with pytest.raises(UnsupportedModel, match=f"^{says}"):
        check_ranks(model, 16, grid)


def test_rank_0_has_the_last_stage_and_ranks_of_a_stage_are_neighbours() -> None:
    grid = RankGrid(tensor=2, stages=3)
    assert [grid.stage_of(rank) for rank in range(6)] == [2, 2, 1, 1, 0, 0]
    assert [grid.part_of(rank) for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    assert [RankGrid(4).stage_of(rank) for rank in range(4)] == [0] * 4
