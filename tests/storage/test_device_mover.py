"""A plan executed in a few launches, compared with the same plan move by move."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.ops import ops_for, torch_ops
from storage.errors import UnknownSlot, UnsupportedMove
from storage.move import Move, Tier, TokenCopy
from storage.pools.device_pool import DevicePool, Mover, independent_runs
from tests.doubles.layouts import alike_layers

BLOCKS = 6
LAYOUT = alike_layers(2, 1, head_dim=16, dtype="float32", block_size=16)
plans = st.lists(st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, BLOCKS - 1)), max_size=12)


class RecordedCopies:
    """Copies by the reference, which record the arguments of each launch."""

    def __init__(self) -> None:
        self.launches: list[list[tuple[int, int]]] = []

    def __call__(self, pool: Tensor, source: Tensor, target: Tensor) -> None:
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        self.launches.append(list(pairs))
        torch_ops().copy_blocks(pool, source, target)


def on_device(*pairs: tuple[int, int]) -> list[Move]:
    return [Move(Tier.DEVICE, source, Tier.DEVICE, target) for source, target in pairs]


def numbered_pool(device: str = "cpu") -> DevicePool:
    """Make a pool in which all numbers of block i are i + 1."""
    pool = DevicePool(LAYOUT, BLOCKS, torch.device(device))
    pool.tensor += torch.arange(1, BLOCKS + 1, device=device).view(-1, 1)
    return pool


def contents(pool: DevicePool) -> list[float]:
    """Return, for each block, the number that fills it."""
    first = pool.tensor[:, 0]
    assert torch.equal(pool.tensor, first.view(-1, 1).expand_as(pool.tensor))
    return [float(number) for number in first]


def one_by_one(pairs: list[tuple[int, int]]) -> list[float]:
    blocks = [float(i + 1) for i in range(BLOCKS)]
    for source, target in pairs:
        blocks[target] = blocks[source]
    return blocks


@given(plans)
def test_any_plan_ends_as_if_done_move_by_move(pairs: list[tuple[int, int]]) -> None:
    pool = numbered_pool()
    Mover(pool, torch_ops().copy_blocks).execute(on_device(*pairs))
    assert contents(pool) == one_by_one(pairs)


@given(plans)
def test_runs_keep_the_contract_of_copy_blocks(pairs: list[tuple[int, int]]) -> None:
    moves = on_device(*pairs)
    runs = list(independent_runs(moves))
    assert [move for run in runs for move in run] == [m for m in moves if m.source != m.target]
    for run in runs:
        targets = [move.target for move in run]
        assert run
        assert len(set(targets)) == len(targets)
        assert not set(targets) & {move.source for move in run}


@pytest.mark.parametrize(
    ("pairs", "launches"),
    [
        ([], []),
        ([(0, 0)], []),
        ([(0, 1), (0, 2), (3, 4)], [[(0, 1), (0, 2), (3, 4)]]),
        ([(0, 1), (1, 2)], [[(0, 1)], [(1, 2)]]),
        ([(0, 1), (2, 0)], [[(0, 1)], [(2, 0)]]),
        ([(0, 1), (2, 1)], [[(0, 1)], [(2, 1)]]),
        ([(0, 1), (2, 2), (3, 4)], [[(0, 1), (3, 4)]]),
        ([(0, 1), (1, 2), (3, 4), (2, 5)], [[(0, 1)], [(1, 2), (3, 4)], [(2, 5)]]),
    ],
    ids=["nothing", "onto-itself", "independent", "target-read-later", "source-written-later",
         "written-twice", "onto-itself-between", "chain"],
)  # fmt: skip
def test_as_few_launches_as_the_order_allows(
    pairs: list[tuple[int, int]], launches: list[list[tuple[int, int]]]
) -> None:
    pool, copies = numbered_pool(), RecordedCopies()
    Mover(pool, copies).execute(on_device(*pairs))
    assert copies.launches == launches
    assert contents(pool) == one_by_one(pairs)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Tier.HOST, Tier.DEVICE),
        (Tier.DEVICE, Tier.HOST),
        (Tier.DISK, Tier.HOST),
        (Tier.HOST, Tier.HOST),
    ],
)
def test_refuses_tiers_it_does_not_have_and_copies_nothing(source: Tier, target: Tier) -> None:
    pool, copies = numbered_pool(), RecordedCopies()
    plan = [*on_device((0, 1)), Move(source, 2, target, 3)]
    with pytest.raises(UnsupportedMove, match=f"{source.value} to {target.value}"):
        Mover(pool, copies).execute(plan)
    assert not copies.launches
    Mover(pool, copies).execute(plan[:1])
    assert copies.launches == [[(0, 1)]]


@pytest.mark.parametrize("pair", [(0, BLOCKS), (BLOCKS, 0), (-1, 0), (0, -1)])
def test_refuses_slots_outside_the_pool_and_copies_nothing(pair: tuple[int, int]) -> None:
    pool, copies = numbered_pool(), RecordedCopies()
    with pytest.raises(UnknownSlot, match=r"not in 0\.\.5"):
        Mover(pool, copies).execute(on_device((0, 1), pair))
    assert not copies.launches
    Mover(pool, copies).execute(on_device((0, BLOCKS - 1)))
    assert copies.launches == [[(0, BLOCKS - 1)]]


@pytest.mark.gpu
def test_a_chain_on_the_gpu_keeps_its_order() -> None:
    pairs = [(0, 1), (1, 2), (2, 3), (4, 0), (3, 4), (5, 5), (0, 5)]
    pool = numbered_pool("cuda")
    Mover(pool, ops_for(torch.device("cuda")).copy_blocks).execute(on_device(*pairs))
    assert contents(pool) == one_by_one(pairs)


@pytest.mark.gpu
def test_a_block_whose_late_layers_are_on_their_way_is_copied_when_they_are_there() -> None:
    device = torch.device("cuda")
    layout = alike_layers(8, 1, head_dim=16, dtype="float32", block_size=16)
    pool = DevicePool(layout, BLOCKS, device, max_late_bytes=layout.block_bytes)
    assert pool.late is not None
    mover = Mover(pool, ops_for(device).copy_blocks)
    up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # the first round loads the kernels, which may wait for other work
    for cycles in (0, 2_000_000_000):
        torch.cuda.synchronize()
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(up):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            pool.tensor[0].add_(7)
            arrived.record()
        pool.late.release_early(arrived)
        mover.execute(on_device((0, 3)))
    assert not arrived.query(), "the host has not waited"  # type: ignore[no-untyped-call]
    assert contents(pool)[3] == 14


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_tokens_are_copied_between_blocks_and_nothing_else_is(dtype: str) -> None:
    layout = alike_layers(2, 2, head_dim=16, dtype=dtype, block_size=16)
    pool = DevicePool(layout, BLOCKS, torch.device("cpu"))
    bits = pool.tensor.view(torch.uint8)
    bits += torch.randint(0, 100, bits.shape, dtype=torch.uint8)
    before = [layer.view(torch.uint8).clone() for layer in pool.layers]
    mover = Mover(pool, torch_ops().copy_blocks)
    mover.copy_tokens([TokenCopy(2 * 16 + 3, 5 * 16 + 15), TokenCopy(0, 4 * 16 + 1)])
    for layer, was in zip(pool.layers, before, strict=True):
        now = layer.view(torch.uint8)
        was[5, :, :, 15], was[4, :, :, 1] = was[2, :, :, 3], was[0, :, :, 0]
        assert torch.equal(now, was)


@pytest.mark.parametrize("copy", [TokenCopy(-1, 0), TokenCopy(0, BLOCKS * 16)])
def test_tokens_outside_of_the_pool_are_refused_before_any_is_copied(copy: TokenCopy) -> None:
    pool = numbered_pool()
    with pytest.raises(UnknownSlot):
        Mover(pool, torch_ops().copy_blocks).copy_tokens([TokenCopy(0, 16), copy])
    assert contents(pool) == [float(i + 1) for i in range(BLOCKS)]
