"""The memory of each rank's GPU, mapped by all ranks through torch's symmetric memory.

    buffer of a rank    (3 turns, rows, ranks, columns), as `kernels.collectives.peer_rows` has it

Multicast is not used. While memory is mapped, the ranks' processes pass descriptors to each other
through Unix sockets in the directory for temporary files.

Elsewhere: the buffers' contents (`kernels.collectives`), and other exchanges of ranks
(`collectives`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from kernels.collectives import peer_gather
from kernels.collectives.peer_rows import TURNS, PeerProduct, PeerRows, ints_of, open_rows

c10d: Any = torch._C._distributed_c10d  # torch's types do not cover this module

NAME = "ratoon-peers"
LEAST_COLUMNS = 128  # threads of the smallest program; each thread polls its own numbers
LONGEST_SOCKET_PATH = 100  # torch overruns its buffer with longer paths
GRACE_S, LOOK_S = 0.5, 0.002  # seconds for a running step after a rank has ended, and between looks
LONGEST_REASON = 200  # maximum characters of a torch error before its traceback

# The maximum bytes of a product that one launch exchanges, 1,024 rows of 8,192 numbers of 16 bits.
# A rank's buffers take three times as much for each rank. A launch should send for longer than a
# round trip between ranks.
MOST_BYTES = 16 << 20


class NoPeerMemory(Exception):
    """An error: the ranks' GPUs cannot all read and write each other's memory."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """The shape of an exchange: rows of `columns` numbers of `dtype`."""

    columns: int
    dtype: torch.dtype

    @property
    def most_rows(self) -> int:
        """The maximum number of rows that are exchanged at once."""
        return MOST_BYTES // (self.columns * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """The mapped buffers. Implements `collectives.Peers`."""

    rows: PeerRows
    held: tuple[Any, ...]  # keeps the buffers mapped

    def product(self, part: Tensor, dtype: torch.dtype) -> PeerProduct | None:
        fits = self.rows.fits(part.shape[-2], part.shape[-1], dtype)
        return PeerProduct(part, self.rows) if fits else None

    def gather(self, x: Tensor) -> Tensor | None:
        return peer_gather.gather(x, self.rows) if peer_gather.can_gather(x, self.rows) else None

    def share(self, x: Tensor) -> bool:
        fits = peer_gather.can_share(x, self.rows)
        if fits:
            peer_gather.share(x, self.rows)
        return fits

    def abandon(self) -> None:
        """Abandon collectives before waiting for the device, because another rank may be gone.

        Running collectives get a moment to end by themselves, since the other ranks may wait for
        this rank's rows. Raises RuntimeError if the device has failed.
        """
        stream, give_up = torch.cuda.current_stream(), time.monotonic() + GRACE_S
        while not stream.query():
            if time.monotonic() > give_up:
                break
            time.sleep(LOOK_S)
        else:
            return
        beside = torch.cuda.Stream(self.rows.own.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(beside):
            self.rows.abandon()


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """A rank, with the store where all ranks meet, and their minimum of a number (`least`)."""

    rank: int
    num_ranks: int
    device: torch.device
    store: Any
    least: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Mapped:
    """The buffers of each rank, and the objects that keep them mapped."""

    buffers: Sequence[Tensor]
    held: tuple[Any, ...]


class Mapping(Protocol):
    """An interface that maps the buffers of all ranks in each rank."""

    def why_not(self, place: PeerPlace) -> str:
        """Return the known reason why buffers cannot be mapped, without trying, or ""."""
        ...

    def map(self, place: PeerPlace, sizes: Sequence[int], ints: torch.dtype) -> Mapped:
        """Allocate buffers of these sizes and map all ranks' buffers.

        Waits. Raises RuntimeError.
        """
        ...


class SymmetricMemory:
    """The mapping by torch's symmetric memory. Implements `Mapping`."""

    def why_not(self, place: PeerPlace) -> str:
        if not hasattr(c10d, "_SymmetricMemory"):
            return "this torch has no symmetric memory"
        directory = tempfile.gettempdir()
        if len(directory) + len("/symm_mem-") + len(str(os.getpid())) > LONGEST_SOCKET_PATH:
            return f"the path of the directory for temporary files is too long: {directory}"
        # The GPUs of other ranks are unknown, so every visible GPU counts as another rank's GPU.
        others = {*range(torch.cuda.device_count())} - {place.device.index}
        if not all(torch.cuda.can_device_access_peer(place.device, index) for index in others):
            return "the GPUs have no access to each other's memory"
        return ""

    def map(self, place: PeerPlace, sizes: Sequence[int], ints: torch.dtype) -> Mapped:
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        group = c10d.ProcessGroup(place.store, place.rank, place.num_ranks)
        c10d._register_process_group(NAME, group)
        memory = c10d._SymmetricMemory
        memory.set_group_info(NAME, place.rank, place.num_ranks, place.store)
        strides = torch.empty(tuple(sizes), device="meta").stride()
        own = memory.empty_strided_p2p(tuple(sizes), strides, ints, place.device)
        handle = memory.rendezvous(own, NAME)
        buffers = [
            own if rank == place.rank else handle.get_buffer(rank, tuple(sizes), ints)
            for rank in range(place.num_ranks)
        ]
        return Mapped(buffers, (handle, group))


def open_peer_memory(place: PeerPlace, shape: RowShape, mapping: Mapping) -> PeerMemory:
    """Map the buffers of all ranks.

    All ranks call this function and wait for each other. Raises NoPeerMemory on all ranks, or on
    none.
    """
    _agree(place, _why_not(shape) or mapping.why_not(place))
    error = ""
    try:
        memory = _mapped(place, shape, mapping)
    except RuntimeError as failed:
        error = " ".join(str(failed).split())[:LONGEST_REASON] or "it failed"
    _agree(place, error)
    return memory


def _agree(place: PeerPlace, error: str) -> None:
    if place.least(0 if error else 1) == 0:
        raise NoPeerMemory(error or "another rank has none")


def _why_not(shape: RowShape) -> str:
    is_served = ints_of(shape.dtype) is not None
    if not is_served or shape.columns < LEAST_COLUMNS or not shape.most_rows:
        return f"rows of {shape.columns} {shape.dtype} are not exchanged there"
    return ""


def _mapped(place: PeerPlace, shape: RowShape, mapping: Mapping) -> PeerMemory:
    sizes = (TURNS, shape.most_rows, place.num_ranks, shape.columns)
    ints = ints_of(shape.dtype)
    assert ints is not None
    mapped = mapping.map(place, sizes, ints)
    rows = open_rows(place.rank, mapped.buffers)
    rows.turns.tolist()  # waits for the device: the sentinel is written before any rank writes
    return PeerMemory(rows, mapped.held)
