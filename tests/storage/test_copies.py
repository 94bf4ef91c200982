"""Copies between device and host: the copied bytes, their order, and the waits of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.batched_copies import CopyPieces, open_batched_copies
from storage.copies import (
    CopyDirection,
    OnStream,
    PlainCopies,
    StreamCopies,
    copies_for,
    pieces_in_order,
    pieces_of,
)
from storage.layerwise_load import LayerwiseLoad, layerwise_load_of
from storage.runs import Runs, runs_of
from tests.doubles.layouts import alike_layers

LAYERS, LAYER_BYTES = 8, 16
LAYOUT = alike_layers(LAYERS, 1, head_dim=2, dtype="float32", block_size=1)
BLOCK_BYTES = LAYERS * LAYER_BYTES
BLOCKS = 10


@dataclass
class Late:
    """A double of late layers, which has only the numbers by which copies are divided."""

    first: int
    max_bytes: int

    @property
    def bytes_before(self) -> int:
        """Return the number of bytes before the first late layer, as LayerwiseLoad does."""
        return LAYOUT.offset(self.first)


def blocks_of(numbers: range) -> torch.Tensor:
    """Make blocks; all bytes of block i are `numbers[i]`."""
    return torch.tensor([[n] * BLOCK_BYTES for n in numbers], dtype=torch.uint8)


def bytes_copied(pieces: CopyPieces, runs: Runs) -> set[tuple[int, int]]:
    """Return every copied byte as (source, target) offsets; check that none is copied twice."""
    seen: set[tuple[int, int]] = set()
    sources = (pieces.sources.astype(int) - runs.sources.data_ptr()).tolist()
    targets = (pieces.targets.astype(int) - runs.targets.data_ptr()).tolist()
    for source, target, size in zip(sources, targets, pieces.sizes.tolist(), strict=True):
        new = {(source + i, target + i) for i in range(size)}
        assert not new & seen
        seen |= new
    return seen


def pairs_of(target: torch.Tensor, source: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> Runs:
    """Return the copies of (source, target) pairs of blocks."""
    slots = np.array(pairs, np.int64)
    return runs_of(target, source, slots[:, 1], slots[:, 0])


permutations = st.permutations(range(BLOCKS))


@given(permutations, permutations, st.integers(1, BLOCKS), st.integers(0, 2 * BLOCKS * BLOCK_BYTES))
def test_late_pieces_are_late_layers_and_all_together_is_everything(
    sources: list[int], targets: list[int], count: int, max_bytes: int
) -> None:
    pairs = list(zip(sources[:count], targets[:count], strict=True))
    blocks = blocks_of(range(BLOCKS))
    runs = pairs_of(torch.empty_like(blocks), blocks, pairs)
    late = Late(first=6, max_bytes=max_bytes)
    first, last = pieces_in_order(runs, late)  # type: ignore[arg-type]
    early, rest = bytes_copied(first, runs), bytes_copied(last, runs)
    assert not early & rest
    assert early | rest == bytes_copied(pieces_of(runs), runs)
    assert len(early | rest) == count * BLOCK_BYTES
    assert len(rest) <= max_bytes
    assert all(source % BLOCK_BYTES >= 6 * LAYER_BYTES for source, _ in rest)
    late_block = 2 * LAYER_BYTES
    assert len(rest) == min(max_bytes // late_block, count) * late_block  # as many bytes as allowed


def test_plain_copies_are_over_at_once_and_promise_nothing() -> None:
    target, source = blocks_of(range(BLOCKS)), blocks_of(range(100, 100 + BLOCKS))
    copies = copies_for(torch.device("cpu"))
    assert isinstance(copies, PlainCopies)
    copying = copies.copy(
        CopyDirection.UP, pairs_of(target, source, [(3, 1), (4, 2)]), copies.record_event()
    )
    assert copying.query()
    assert not copying.release_early()
    assert target[:, 0].tolist() == [0, 103, 104, *range(3, BLOCKS)]


def test_a_cpu_and_few_layers_have_no_late_ones() -> None:
    few = replace(LAYOUT.groups[0], layers=(0, 1, 2))
    assert layerwise_load_of(LAYOUT, 100, torch.device("cpu")) is None
    assert layerwise_load_of(replace(LAYOUT, groups=(few,)), 100, torch.device("cuda")) is None


# clock cycles, about a second of a GPU, in which an event is certainly pending
CYCLES = 2_000_000_000


@pytest.fixture
def pinned() -> torch.Tensor:
    return blocks_of(range(100, 100 + BLOCKS)).pin_memory()


@pytest.mark.gpu
@pytest.mark.parametrize("is_batched", [True, False])
def test_blocks_go_both_ways(pinned: torch.Tensor, is_batched: bool) -> None:
    device = torch.device("cuda")
    batched = open_batched_copies() if is_batched else None
    copies = StreamCopies(device, LayerwiseLoad(LAYOUT, 64, device), batched)
    pool = blocks_of(range(BLOCKS)).to(device)
    pairs = [(0, 9), (1, 8), (5, 0), (6, 1)]
    up = copies.copy(CopyDirection.UP, pairs_of(pool, pinned, pairs), copies.record_event())
    up.synchronize()
    want = list(range(BLOCKS))
    for source, target in pairs:
        want[target] = 100 + source
    assert pool.cpu().tolist() == blocks_of(range(256))[want].tolist()
    down = copies.copy(
        CopyDirection.DOWN, pairs_of(pinned, pool, [(9, 2), (8, 3)]), copies.record_event()
    )
    down.synchronize()
    assert pinned[:, 0].tolist() == [100, 101, 100, 101, *range(104, 100 + BLOCKS)]


@dataclass
class SlowLoad:
    """A load whose late half arrives after `cycles`; both halves change from 0 to 7."""

    late: LayerwiseLoad
    early_half: torch.Tensor
    late_half: torch.Tensor

    def begin(self, stream: torch.cuda.Stream, cycles: int) -> OnStream:
        self.early_half.zero_()
        self.late_half.zero_()
        torch.cuda.synchronize()
        copying = OnStream(stream)
        with torch.cuda.stream(stream):
            self.early_half.fill_(7)
            copying.only_late(self.late)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            self.late_half.fill_(7)
        copying.end()
        return copying


@pytest.mark.gpu
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_step_behind_a_promise_sees_the_late_layers_and_others_do_not_wait(
    is_recorded: bool,
) -> None:
    device = torch.device("cuda")
    late = LayerwiseLoad(LAYOUT, BLOCKS * BLOCK_BYTES, device)
    load = SlowLoad(late, torch.zeros(9, device=device), torch.zeros(9, device=device))
    seen = torch.zeros(3, 9, device=device)
    up, stream = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def step() -> None:
        seen[0].copy_(load.early_half)
        seen[1].copy_(load.late_half)
        late.wait()
        seen[2].copy_(load.late_half)

    launch = step
    if is_recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        launch = graph.replay
    for cycles in (0, CYCLES):  # the first round loads the kernels, which may wait for other work
        copying = load.begin(up, cycles)
        with torch.cuda.stream(stream):
            launch()
        stream.synchronize()
        unpromised = seen[:, 0].tolist()
        was_waited_for = copying.query()
        while not copying.release_early():
            pass
        with torch.cuda.stream(stream):
            launch()
        has_ended = copying.query()
        stream.synchronize()
    assert not was_waited_for, "a step that was launched without a promise waits for nothing"
    assert unpromised[1:] == [0, 0]
    assert not has_ended, "nor does the host, behind one"
    assert copying.query(), "when a step is over, so are the loads that were promised to it"
    assert seen[:, 0].tolist() == [7, 0, 7]


@pytest.mark.gpu
def test_whole_loads_are_promised_when_their_first_layers_are_there(pinned: torch.Tensor) -> None:
    device = torch.device("cuda")
    late = LayerwiseLoad(LAYOUT, 4 * BLOCK_BYTES, device)
    copies = StreamCopies(device, late, open_batched_copies())
    pool = torch.zeros(BLOCKS, BLOCK_BYTES, dtype=torch.uint8, device=device)
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    runs = pairs_of(pool, pinned, [(i, i) for i in range(BLOCKS)])
    copying = copies.copy(CopyDirection.UP, runs, copies.record_event())
    assert not copying.release_early(), "it waits for the event"
    while not copying.release_early():
        pass
    late.wait()
    assert torch.equal(pool.cpu(), pinned)
