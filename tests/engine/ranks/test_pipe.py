"""Data between stages arrives unchanged and in order, or raises an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.models.grid import RankGrid
from engine.ranks.collectives import Collectives, RankLeft, Rendezvous
from engine.ranks.groups import meet
from engine.ranks.pipe import StagePipe
from storage.layouts.stage import Stage
from tests.engine.rigs.ranks import CPU, PATIENCE, on_ranks, rendezvous_file, together

ENDS = (1, 2, 3)


def sent(number: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(1 + 7 * number, 48, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_stages_pass_on_what_they_get(dtype: torch.dtype) -> None:
    def compute(group: Collectives) -> list[Tensor]:
        pipe = StagePipe(Stage(group.rank, ENDS), group, CPU)
        passed = []
        for number in range(4):
            x = sent(number, dtype)
            if not pipe.stage.is_first:
                x = pipe.receive(torch.empty_like(x)) * 2
            if not pipe.stage.is_last:
                pipe.send(x)
            passed.append(x)
        return passed

    *_, last = on_ranks(3, compute)
    for number, found in enumerate(last):
        assert torch.equal(found, sent(number, dtype) * 4)


def test_a_stage_that_is_gone_is_an_error_and_nothing_hangs() -> None:
    def compute(group: Collectives) -> str:
        pipe = StagePipe(Stage(group.rank, (1, 2)), group, CPU)
        if pipe.stage.is_first:
            return "gone"
        try:
            pipe.receive(torch.zeros(1, 1))
        except RankLeft:
            return "an error"
        return "no error"

    assert on_ranks(2, compute) == ["gone", "an error"]


def test_each_rank_gives_to_the_same_part_of_the_next_stage() -> None:
    """Send to the rank of the same number in the next stage, but sum only within its own stage."""
    grid = RankGrid(tensor=2, stages=2)

    def compute(rank: int, path: str) -> list[int]:
        stage = Stage(grid.stage_of(rank), (1, 2))
        groups = meet(Rendezvous(path, rank, 4, PATIENCE), grid, stage, CPU)
        assert groups.tensor is not None
        assert groups.pipe is not None
        number = torch.tensor([[rank]])
        if stage.is_first:
            groups.pipe.send(number)
        else:
            number = groups.pipe.receive(number)
        found = groups.tensor.gather(number).flatten().tolist()
        least = groups.least(rank + 5)
        groups.close()
        return [*found, least]

    with rendezvous_file() as path:
        found = together(4, lambda rank: compute(rank, path))
    assert found == [[2, 3, 5]] * 4, "the first stage's ranks are 2 and 3"
