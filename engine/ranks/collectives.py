"""The collectives between computing ranks: over gloo on a CPU, over NCCL on GPUs.

    total    all-gather of the ranks' products, which the next reader adds in rank order
             for many numbers, if ranks are more than two: each adds up a part, then all-gather
    gather   all-gather
    share    broadcast of rank 0
    least    the smallest of the ranks' numbers; before steps are computed

If GPUs have peer memory, kernels of this project exchange the tensors that fit there
(`peer_memory`). NCCL takes several times as long for few rows. Libraries only copy bytes. Every sum
is computed here in one order, so all ranks have the same bits. The group's ranks meet at a file.
Only gloo and NCCL listen to the network: gloo on the loopback interface, and NCCL between GPUs.
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

c10d: Any = torch.distributed  # torch's types do not cover its groups

LOOPBACK = "127.0.0.1"
# The maximum wait for another rank, which may be loading weights and compiling kernels.
PATIENCE = timedelta(minutes=10)
# The maximum number of bytes that a library gathers whole. Larger sums are two-shot, which sends
# less.
MOST_GATHERED_BYTES = 1 << 20

_OF_GLOO = re.compile(r"^\[\S+\.cc:\d+\] ")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The rendezvous of the ranks of a group: a file, empty when it was made.

    Several groups may meet at one file, each group under its own `name`.
    """

    path: str
    rank: int
    num_ranks: int
    patience: timedelta = PATIENCE
    name: str = "all"


class RankLeft(AnotherRankIsGone, RuntimeError):
    """An error: another rank is gone, or did not come, so it will send no data."""


class Peers(Protocol):
    """An interface to the exchange of ranks over peer memory.

    A result of None or False means that the tensor does not fit.
    """

    def product(self, part: Tensor, dtype: torch.dtype) -> PeerProduct | None:
        """Return the ranks' sum (T, H) of `dtype`, or the parts that the sum's reader adds."""
        ...

    def gather(self, x: Tensor) -> Tensor | None:
        """Gather x (R, C) of each rank -> (R, ranks * C)."""
        ...

    def share(self, x: Tensor) -> bool:
        """Overwrite `x` with its values on rank 0."""
        ...

    def abandon(self) -> None:
        """Abandon collectives whose other ranks may be gone, before waiting for the device."""
        ...


class Collectives:
    """The ranks of one model, seen from one of them.

    Implements `RankGroup`. Used by one thread only. Methods that wait raise RankLeft if another
    rank is gone. On CUDA no method waits for the device. Launches can be captured in a graph, which
    all ranks must capture and replay alike.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device) -> None:
        """Wait for all ranks. Raises RankLeft if a rank does not come or is gone."""
        self.rank = rendezvous.rank
        self.num_ranks = rendezvous.num_ranks
        self._device = device
        self._peers: Peers | None = None
        self._store = c10d.PrefixStore(
            rendezvous.name, c10d.FileStore(rendezvous.path, rendezvous.num_ranks)
        )
        self._hosts = _gloo(self._place("hosts"), rendezvous)
        self._group = self._hosts
        self.least(0)  # a rank that leaves early would fail ranks that still connect
        if device.type == "cuda":
            self._group = _nccl(self._place("devices"), rendezvous)
            self._warm_up(device)

    @property
    def devices(self) -> Any:
        """The torch process group for tensors on the device."""
        return self._group

    def open_peer_memory(self, shape: RowShape) -> None:
        """Use peer memory from now on for tensors that fit, if all ranks have it."""
        if self._device.type != "cuda":
            return
        place = PeerPlace(self.rank, self.num_ranks, self._device, self._place("peers"), self.least)
        try:
            self.use_peers(open_peer_memory(place, shape, SymmetricMemory()))
            _log.info("ranks exchange over peer memory")
        except NoPeerMemory as error:
            _log.warning("no peer memory, so ranks exchange over NCCL alone: %s", error)

    def use_peers(self, peers: Peers) -> None:
        """Exchange tensors that fit over `peers`."""
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
        # Slice r of each rank's tensor goes to rank r, which adds the slices.
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
        """Return rank 0's bytes. `value` has the same length on each rank. Waits for rank 0."""
        content = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        wait_for(self._hosts.broadcast([content], _from_first()))
        return content.numpy().tobytes()

    def close(self) -> None:
        """Leave the group without waiting for other ranks, before its rendezvous file is closed.

        Graphs that captured the group's collectives cannot be replayed afterwards.
        """
        if self._peers is not None:
            self._give_up(self._peers)
            self._peers = None
        if self._group is not self._hosts:
            self._group.abort()
        self._hosts.shutdown()
        # Torch's store reads its file a last time when it is freed.
        self._group = self._hosts = self._store = None

    def _give_up(self, peers: Peers) -> None:
        try:
            peers.abandon()
        except RuntimeError as error:  # after a device failure the host does not wait
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
        """Use NCCL once to connect the ranks: no graph can capture its first use."""
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
    except RuntimeError as error:  # another rank does not come
        raise RankLeft(_in_short(error)) from error


def _nccl(store: Any, rendezvous: Rendezvous) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = rendezvous.patience
    return c10d.ProcessGroupNCCL(store, rendezvous.rank, rendezvous.num_ranks, options)


def _added(ranks: Tensor) -> Tensor:
    """Add (ranks, ...) in the order of ranks and round once, like the norms.

    Torch's sum of more than four ranks has another order.
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
    """View a tensor as (bytes,) uint8. A tensor that is not contiguous is copied."""
    return x.contiguous().view(-1).view(torch.uint8)
