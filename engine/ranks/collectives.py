"""The collectives between ranks: over gloo on a CPU, over NCCL on GPUs.

    total    all-gather of the ranks' products; the next reader adds them in rank order
             many numbers and more than two ranks: each rank adds up a slice, then all-gather
    gather   all-gather
    share    broadcast of rank 0
    least    the minimum of the ranks' numbers; used only at the start

If GPUs have peer memory, kernels of this project exchange the tensors that fit there
(`peer_memory`), because NCCL takes several times as long for few rows. The libraries only copy
bytes. Every sum is computed here in a fixed order, so that all ranks get the same bits. The ranks
of a group find each other through a file. Only gloo and NCCL open network ports: gloo on the
loopback interface, and NCCL between GPUs.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from engine.process import AnotherRankIsGone
from engine.ranks.peer_memory import (
    NoPeerMemory,
    PeerPlace,
    RowShape,
    SymmetricMemory,
    open_peer_memory,
)
from kernels.collectives import peer_gather
from kernels.collectives.peer_rows import PeerProduct
from kernels.linear import split_k as parts

c10d: Any = torch.distributed  # torch has no types for its process groups

LOOPBACK = "127.0.0.1"
# The maximum time to wait for another rank, which may be loading weights or compiling kernels.
PATIENCE = timedelta(minutes=10)
# The maximum bytes for a sum by all-gather. For larger tensors, each rank sums a slice and gathers
# the sums (two-shot), which sends less.
MOST_GATHERED_BYTES = 1 << 20

_OF_GLOO = re.compile(r"^\[\S+\.cc:\d+\] ")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The meeting point of the ranks of a group: a file that was created empty.

    Several groups may use one file, each under its own `name`.
    """

    path: str
    rank: int
    num_ranks: int
    patience: timedelta = PATIENCE
    name: str = "all"


class RankLeft(AnotherRankIsGone, RuntimeError):
    """An error: another rank has ended or did not arrive, so no data will come from it."""


class Peers(Protocol):
    """An interface to the exchange of data between ranks over peer memory.

    The result None or False means that the tensor does not fit into peer memory.
    """

    def product(self, part: Tensor, dtype: torch.dtype) -> PeerProduct | None:
        """Return the parts of all ranks. The kernel that reads them next adds them."""
        ...

    def gather(self, x: Tensor) -> Tensor | None:
        """Join the columns of all ranks: x (R, C) of each rank -> (R, ranks * C)."""
        ...

    def share(self, x: Tensor) -> bool:
        """Overwrite `x` with the values that it has on rank 0."""
        ...

    def abandon(self) -> None:
        """Abort collectives whose other ranks may have ended, so that the device can finish."""
        ...


class Collectives:
    """The collectives of a group, as one rank uses them.

    Implements `RankGroup`. Used by one thread only. Methods that wait raise RankLeft if another
    rank has ended. On CUDA no method waits for the device. Launches can be captured in a graph, if
    all ranks capture and replay the same graphs.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device) -> None:
        """Wait for all ranks. Raises RankLeft if a rank does not arrive or has ended."""
        self.rank = rendezvous.rank
        self.num_ranks = rendezvous.num_ranks
        self._device = device
        self._peers: Peers | None = None
        self._store = c10d.PrefixStore(
            rendezvous.name, c10d.FileStore(rendezvous.path, rendezvous.num_ranks)
        )
        self._hosts = _gloo(self._place("hosts"), rendezvous)
        self._group = self._hosts
        self.least(0)  # wait: if a rank ended now, ranks that are still connecting would fail
        if device.type == "cuda":
            self._group = _nccl(self._place("devices"), rendezvous)
            self._warm_up(device)

    @property
    def devices(self) -> Any:
        """The torch process group for tensors on the device."""
        return self._group

    def open_peer_memory(self, shape: RowShape) -> None:
        """Use peer memory from now on for tensors that fit, if all ranks have peer memory."""
        if self._device.type != "cuda":
            return
        place = PeerPlace(self.rank, self.num_ranks, self._device, self._place("peers"), self.least)
        try:
            self.use_peers(open_peer_memory(place, shape, SymmetricMemory()))
            _log.info("ranks exchange over peer memory")
        except NoPeerMemory as error:
            _log.warning("no peer memory, so ranks exchange over NCCL alone: %s", error)

    def use_peers(self, peers: Peers) -> None:
        """Use `peers` from now on for all tensors that fit into peer memory."""
        self._peers = peers

    def total(
        self, product: Tensor, dtype: torch.dtype, *, in_parts: bool = True
    ) -> Tensor | PeerProduct:
        if in_parts and self._peers is not None:
            unread = self._peers.product(product, dtype)
            if unread is not None:
                return unread
        mine = parts.whole(product, dtype)
        if self._is_small(mine):
            gathered = self.gather(mine)
            return gathered if in_parts else _added(gathered)
        # Each rank's slice r goes to rank r, which adds up the slices.
        sliced = mine.new_empty((self.num_ranks, mine.numel() // self.num_ranks))
        options = c10d.AllToAllOptions()
        wait_for(self._group.alltoall_base(_bytes(sliced), _bytes(mine), [], [], options))
        return self.gather(_added(sliced)).view_as(mine)

    def gather(self, x: Tensor) -> Tensor:
        """Gather x (...) of each rank -> (num_ranks, ...)."""
        shape = self.num_ranks, *x.shape
        if self._peers is not None:
            found = self._peers.gather(x.reshape(1, -1))
            if found is not None:
                return found.view(shape)
        gathered = x.new_empty(shape)
        if gathered.numel():
            wait_for(self._group._allgather_base(_bytes(gathered), _bytes(x)))
        return gathered

    def gather_columns(self, x: Tensor) -> Tensor:
        found = None if self._peers is None else self._peers.gather(x)
        return peer_gather.reference(self.gather(x)) if found is None else found

    def share(self, x: Tensor) -> None:
        if self._peers is not None and self._peers.share(x):
            return
        if x.numel():
            wait_for(self._group.broadcast([_bytes(x)], _from_first()))

    def least(self, number: int) -> int:
        """Return the minimum of the ranks' numbers. Waits for all ranks."""
        found = torch.empty(self.num_ranks, dtype=torch.int64)
        wait_for(self._hosts._allgather_base(found, torch.tensor([number])))
        return int(found.min())

    def of_first(self, value: bytes) -> bytes:
        """Return rank 0's `value`, which has the same length on all ranks. Waits for rank 0."""
        content = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        wait_for(self._hosts.broadcast([content], _from_first()))
        return content.numpy().tobytes()

    def close(self) -> None:
        """Leave the group without waiting for other ranks. Call before closing its file.

        Graphs that captured the group's collectives cannot be replayed afterwards.
        """
        if self._peers is not None:
            self._give_up(self._peers)
            self._peers = None
        if self._group is not self._hosts:
            self._group.abort()
        self._hosts.shutdown()
        # Free torch's store here, because it reads its file once more when it is freed.
        self._group = self._hosts = self._store = None

    def _give_up(self, peers: Peers) -> None:
        try:
            peers.abandon()
        except RuntimeError as error:  # the device may have failed
            _log.warning("peer memory was not given up: %s", error)

    def _place(self, name: str) -> Any:
        return c10d.PrefixStore(name, self._store)

    def _is_small(self, x: Tensor) -> bool:
        num_bytes = x.numel() * x.element_size()
        return (
            self.num_ranks == 2
            or num_bytes <= MOST_GATHERED_BYTES
            or x.numel() % self.num_ranks > 0
        )

    def _warm_up(self, device: torch.device) -> None:
        """Use NCCL once, so that it connects the ranks. A graph cannot capture the first use."""
        numbers = torch.zeros(self.num_ranks, device=device)
        self.gather(numbers)
        self.share(numbers)
        large = torch.zeros(MOST_GATHERED_BYTES // 4 + self.num_ranks, device=device)
        self.total(large[: len(large) // self.num_ranks * self.num_ranks].view(1, -1), large.dtype)
        torch.cuda.synchronize(device)


def wait_for(work: Any) -> None:
    """Wait for a collective's end, or on CUDA for its launch. Raises RankLeft."""
    try:
        work.wait()
    except RuntimeError as error:
        raise RankLeft(_in_short(error)) from error


def _in_short(error: RuntimeError) -> str:
    line = str(error).partition("\n")[0]
    return _OF_GLOO.sub("", line).partition(". This is typically caused by")[0]


def _gloo(store: Any, rendezvous: Rendezvous) -> Any:
    options = c10d.ProcessGroupGloo._Options()
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = rendezvous.patience
    try:
        return c10d.ProcessGroupGloo(store, rendezvous.rank, rendezvous.num_ranks, options)
    except RuntimeError as error:  # another rank did not arrive
        raise RankLeft(_in_short(error)) from error


def _nccl(store: Any, rendezvous: Rendezvous) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = rendezvous.patience
    return c10d.ProcessGroupNCCL(store, rendezvous.rank, rendezvous.num_ranks, options)


def _added(ranks: Tensor) -> Tensor:
    """Add up (ranks, ...) in the order of ranks, in float32, and round once, like the norms.

    `torch.sum` adds more than four ranks in another order.
    """
    total = ranks[0].to(torch.float32, copy=True)
    for other in ranks[1:]:
        total += other
    return total.to(ranks.dtype)


def _from_first() -> Any:
    options = c10d.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    return options


def _bytes(x: Tensor) -> Tensor:
    """View a tensor as uint8 (bytes,). If it is not contiguous, copy it."""
    return x.contiguous().view(-1).view(torch.uint8)
