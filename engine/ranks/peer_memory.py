"""Memory of every rank's GPU that all ranks have mapped, by torch's symmetric memory.

No multicast: neither objects for it nor instructions. The ranks' processes hand each other
descriptors through a Unix socket in the directory for temporary files, while they start.

Knows: one buffer of each rank. Does not know: what is written there (`kernels.exchange`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

c10d: Any = torch.distributed
native: Any = torch._C._distributed_c10d


class NoPeerMemory(Exception):
    """The ranks' GPUs cannot read and write each other's memory."""


def mapped_buffers(
    store: Any,
    rank: int,
    num_ranks: int,
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Any, list[Tensor]]:
    """What keeps the mapping, and the buffer of each rank. Waits for all ranks.

    Raises RuntimeError.
    """
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    memory = native._SymmetricMemory
    group = c10d.ProcessGroup(store, rank, num_ranks)
    native._register_process_group(name, group)
    memory.set_group_info(name, rank, num_ranks, store)
    strides = torch.empty(tuple(shape), device="meta").stride()
    own = memory.empty_strided_p2p(tuple(shape), strides, dtype, device)
    handle = memory.rendezvous(own, name)
    return (own, handle, group), [
        own if one == rank else handle.get_buffer(one, tuple(shape), dtype)
        for one in range(num_ranks)
    ]
