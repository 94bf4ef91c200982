"""Peer memory exists on all ranks or on none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.ranks.peer_memory import (
    MOST_BYTES,
    Mapped,
    Mapping,
    NoPeerMemory,
    PeerMemory,
    PeerPlace,
    RowShape,
    open_peer_memory,
)
from tests.engine.rigs.ranks import CPU

HERE = RowShape(4096, torch.bfloat16)


class PlainMapping:
    """A mapping of plain memory. Its start is refused with `reason`, or its mapping raises
    `error`.
    """

    def __init__(self, reason: str = "", error: str = "") -> None:
        self._reason = reason
        self._error = error

    def why_not(self, place: PeerPlace) -> str:
        del place
        return self._reason

    def map(self, place: PeerPlace, sizes: Sequence[int], ints: torch.dtype) -> Mapped:
        if self._error:
            raise RuntimeError(self._error)
        return Mapped([torch.zeros(tuple(sizes), dtype=ints) for _ in range(place.num_ranks)], ())


def opened(
    shape: RowShape = HERE, mapping: Mapping | None = None, of_others: Sequence[int] = (1, 1)
) -> PeerMemory:
    """Open peer memory on rank 0. `of_others` says whether rank 1 can, before and after it maps
    memory.
    """
    others = iter(of_others)
    place = PeerPlace(0, 2, CPU, None, lambda mine: min(mine, next(others)))
    return open_peer_memory(place, shape, mapping or PlainMapping())


def test_what_is_mapped_has_the_mark_everywhere() -> None:
    rows = opened().rows
    assert (rows.own == -1).all()
    assert rows.fits(2048, 4096, torch.bfloat16)
    assert opened(RowShape(4096, torch.float32)).rows.fits(1024, 4096, torch.float32)


def test_rows_that_are_not_exchanged_are_said_so_on_every_rank() -> None:
    too_wide = RowShape(MOST_BYTES, torch.bfloat16)
    for shape in (
        too_wide,
        RowShape(4096, torch.float64),
        RowShape(4096, torch.int16),
        RowShape(64, torch.bfloat16),
    ):
        with pytest.raises(NoPeerMemory, match="are not exchanged there"):
            opened(shape)


def test_a_rank_that_has_none_keeps_the_others_from_it() -> None:
    for of_others in ((0,), (1, 0)):
        with pytest.raises(NoPeerMemory, match="another rank has none"):
            opened(of_others=of_others)


def test_the_reason_is_said() -> None:
    with pytest.raises(NoPeerMemory, match="no access"):
        opened(mapping=PlainMapping(reason="no access"))
    with pytest.raises(NoPeerMemory, match="no room at all"):
        opened(mapping=PlainMapping(error="no room\n  at all"))


def test_wide_rows_are_fewer_at_once() -> None:
    shapes = HERE, RowShape(8192, torch.bfloat16), RowShape(4096, torch.float32)
    assert [shape.most_rows for shape in shapes] == [2048, 1024, 1024]
