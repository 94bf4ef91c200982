"""Norms for a CPU. They gather the products that GPU kernels would exchange over peer memory."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from engine.ranks.collectives import Collectives
from kernels.collectives.peer_rows import PeerProduct
from kernels.linear import split_k as parts
from kernels.linear.fp8_rows import Fp8Rows, Scaling
from kernels.norms import add_rms_norm
from kernels.ops import Ops, torch_ops


class GatheringNorms:
    """The norms of one rank, which count the products that they had to gather."""

    def __init__(self, group: Collectives) -> None:
        self.num_unread = 0
        self._group = group

    @property
    def ops(self) -> Ops:
        """PyTorch's operations, with these norms."""
        return replace(torch_ops(), add_rms_norm=self._add, add_rms_norm_fp8=self._add_fp8)

    def _add(
        self, x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return add_rms_norm.reference(self._gathered(x, residual), residual, weight, eps)

    def _add_fp8(
        self, x: Tensor | PeerProduct, residual: Tensor, weight: Tensor, eps: float, by: Scaling
    ) -> tuple[Fp8Rows, Tensor]:
        return add_rms_norm.reference_fp8(self._gathered(x, residual), residual, weight, eps, by)

    def _gathered(self, x: Tensor | PeerProduct, residual: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return x
        self.num_unread += 1
        return self._group.gather(parts.whole(x.part, residual.dtype))
