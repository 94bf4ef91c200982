"""The operations a decoder is made of, as one value that a runner is given.

Knows: their signatures. Does not know: who calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every operation."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    silu_mul: Callable[[Tensor], Tensor]
    rope_write_kv: Callable[..., Tensor]
    paged_attention: Callable[..., Tensor]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
