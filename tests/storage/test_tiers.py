"""The device, the host and the disk fulfil the contract of `tier_contract.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from torch import Tensor

from kernels.ops import torch_ops
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.move import Move, Plan, Tier
from storage.pools.device_pool import DevicePool, Mover
from storage.pools.host_pool import HostPool
from storage.tier_mover import TierMover, block_bytes_of
from tests.storage.scene import BLOCK_BYTES, CPU, LAYOUT, content, disk_config, finish, record
from tests.storage.tier_contract import Shelf, TierContract

SLOTS = 24


class MovedShelf:
    """The slots of the host or the disk as a `Shelf`, filled from the device and read back to
    it.
    """

    def __init__(self, tier: Tier, num_slots: int, mover: TierMover, pool: DevicePool) -> None:
        self.num_slots = num_slots
        self.disk: DiskTier | None = None
        self._tier = tier
        self._mover = mover
        self._blocks = block_bytes_of(pool)

    def put(self, slots: Sequence[int], numbers: Sequence[int]) -> int:
        self._fill(0, numbers)
        moves = [Move(Tier.DEVICE, i, self._tier, slot) for i, slot in enumerate(slots)]
        return len(self._run(moves, numbers))

    def get(self, slots: Sequence[int], numbers: Sequence[int]) -> list[Tensor | None]:
        return self._collect(self._run(self._reads(slots), numbers), len(slots))

    def get_and_put(
        self, slots: Sequence[int], numbers: Sequence[int], to: Sequence[int], new: Sequence[int]
    ) -> list[Tensor | None]:
        self._fill(len(slots), new)
        writes = [Move(Tier.DEVICE, len(slots) + i, self._tier, s) for i, s in enumerate(to)]
        done = self._run([*self._reads(slots), *writes], [*numbers, *new])
        assert set(writes) <= done
        return self._collect(done, len(slots))

    def erase(self, slots: Sequence[int]) -> None:
        self._mover.start(Plan(erase=tuple(slots)))

    def _reads(self, slots: Sequence[int]) -> list[Move]:
        self._blocks[: len(slots)] = 0
        return [Move(self._tier, slot, Tier.DEVICE, i) for i, slot in enumerate(slots)]

    def _fill(self, first: int, numbers: Sequence[int]) -> None:
        for i, number in enumerate(numbers):
            self._blocks[first + i] = content(number)

    def _run(self, moves: list[Move], numbers: Sequence[int]) -> set[Move]:
        records = {move: record(n) for move, n in zip(moves, numbers, strict=True)}
        self._mover.start(Plan(tuple(moves), records))
        settled = finish(self._mover, self.disk)
        assert not settled.failed
        return set(settled.done)

    def _collect(self, done: set[Move], count: int) -> list[Tensor | None]:
        there = {move.target for move in done if move.target_tier is Tier.DEVICE}
        return [self._blocks[i].clone() if i in there else None for i in range(count)]


class DeviceShelf:
    """The device's own slots as a `Shelf`, filled from later blocks of the same pool."""

    def __init__(self) -> None:
        self.num_slots = SLOTS
        self._pool = DevicePool(LAYOUT, 2 * SLOTS, CPU)
        self._blocks = block_bytes_of(self._pool)
        self._mover = Mover(self._pool, torch_ops().copy_blocks)

    def put(self, slots: Sequence[int], numbers: Sequence[int]) -> int:
        for i, number in enumerate(numbers):
            self._blocks[SLOTS + i] = content(number)
        past = 2 * SLOTS  # index of the pool's second half; the shelf is the first half
        moves = [
            Move(Tier.DEVICE, SLOTS + i, Tier.DEVICE, slot if slot < SLOTS else past)
            for i, slot in enumerate(slots)
        ]
        self._mover.execute(moves)
        return len(moves)

    def get(self, slots: Sequence[int], numbers: Sequence[int]) -> list[Tensor | None]:
        moves = [Move(Tier.DEVICE, slot, Tier.DEVICE, SLOTS + i) for i, slot in enumerate(slots)]
        self._mover.execute(moves)
        return [self._blocks[SLOTS + i].clone() for i in range(len(slots))]

    def get_and_put(
        self, slots: Sequence[int], numbers: Sequence[int], to: Sequence[int], new: Sequence[int]
    ) -> list[Tensor | None]:
        found = self.get(slots, numbers)
        self.put(to, new)
        return found

    def erase(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._blocks[slot] = 0


@pytest.fixture(scope="module")
def clear_shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    with disk_shelf(disk_config(tmp_path_factory.mktemp("clear"), num_blocks=SLOTS)) as shelf:
        yield shelf


@pytest.fixture(scope="module")
def encrypted_shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    directory = tmp_path_factory.mktemp("encrypted")
    with disk_shelf(disk_config(directory, num_blocks=SLOTS, encrypt=True)) as shelf:
        yield shelf


@contextmanager
def disk_shelf(config: DiskConfig) -> Iterator[Shelf]:
    """Run one disk process for many tests."""
    disk = DiskTier(config)
    pool = DevicePool(LAYOUT, disk.num_blocks, CPU)
    shelf = MovedShelf(Tier.DISK, disk.num_blocks, TierMover(pool, None, disk), pool)
    shelf.disk = disk
    yield shelf
    disk.close()


class TestDevice(TierContract):
    @pytest.fixture
    def shelf(self) -> Shelf:
        return DeviceShelf()


class TestHost(TierContract):
    @pytest.fixture
    def shelf(self) -> Iterator[Shelf]:
        host = HostPool(SLOTS, BLOCK_BYTES, CPU)
        pool = DevicePool(LAYOUT, 2 * SLOTS, CPU)
        yield MovedShelf(Tier.HOST, SLOTS, TierMover(pool, host), pool)
        host.close()


class TestDisk(TierContract):
    forgets = True

    @pytest.fixture
    def shelf(self, clear_shelf: Shelf) -> Shelf:
        return clear_shelf


class TestEncryptedDisk(TierContract):
    forgets = True

    @pytest.fixture
    def shelf(self, encrypted_shelf: Shelf) -> Shelf:
        return encrypted_shelf
