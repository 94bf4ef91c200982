"""The buffers on each rank's GPU that all ranks map, through torch's symmetric memory.

    buffer of a rank    (3 turns, rows, ranks, columns), see `kernels.collectives.peer_rows`

Multicast is not used. To map memory, the ranks' processes pass file descriptors to each other
through Unix sockets in the directory for temporary files.

Elsewhere: the contents of the buffers (`kernels.collectives`), and the other transports
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

c10d: Any = torch._C._distributed_c10d  # torch has no types for this module

NAME = "ratoon-peers"
LEAST_COLUMNS = 128  # number of threads of the smallest program; each thread polls its own numbers
LONGEST_SOCKET_PATH = 100  # with longer paths, torch overruns a buffer
# Seconds that a running step gets after a rank ended; seconds between checks.
GRACE_S, LOOK_S = 0.5, 0.002
LONGEST_REASON = 200  # maximum characters of a torch error before its traceback

# The maximum bytes of a product that one launch exchanges: 1,024 rows of 8,192 numbers of 16 bits.
# A rank's buffers take three times as much for each rank. With less, sending would take less time
# than the round trip between ranks.
MOST_BYTES = 16 << 20


class NoPeerMemory(Exception):
    """An error: the ranks' GPUs cannot all read and write each other's memory."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """The shape of the exchanged rows: `columns` numbers of `dtype`."""

    columns: int
    dtype: torch.dtype

    @property
    def most_rows(self) -> int:
        """The maximum number of rows that are exchanged together."""
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
        """Abort collectives, because another rank may have ended. The device can then finish.

        Running collectives get a moment to end by themselves, because other ranks may be waiting
        for this rank's rows. Raises RuntimeError if the device has failed.
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
    """The place of a rank: its number, its device, and the ranks' common store.

    `least` returns the minimum of the numbers that all ranks call it with.
    """

    rank: int
    num_ranks: int
    device: torch.device
    store: Any
    least: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Mapped:
    """The mapped buffers of all ranks, and the objects that keep them mapped."""

    buffers: Sequence[Tensor]
    held: tuple[Any, ...]


class Mapping(Protocol):
    """An interface that maps the buffers of all ranks into each rank's process."""

    def why_not(self, place: PeerPlace) -> str:
        """Return the reason if buffers certainly cannot be mapped, else "". Does not try to map."""
        ...

    def map(self, place: PeerPlace, sizes: Sequence[int], ints: torch.dtype) -> Mapped:
        """Allocate buffers of these sizes and map all ranks' buffers.

        Waits for the other ranks. Raises RuntimeError.
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
        # This rank does not know the GPUs of other ranks, so it checks all visible GPUs.
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

    All ranks must call this function, and they wait for each other. If one rank raises
    NoPeerMemory, all do.
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
    rows.turns.tolist()  # wait for the device: buffers must be initialised before any rank writes
    return PeerMemory(rows, mapped.held)
