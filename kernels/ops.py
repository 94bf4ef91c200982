"""The ops that a model is computed with, chosen once by device.

Shapes, dtypes and errors of an op are documented in its module.

Knows: which function is for which device. Does not know: the models that call them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kernels import (
    add_rms_norm,
    copy_blocks,
    draw,
    keep_likeliest,
    linear,
    paged_attention,
    rms_norm,
    rope_write_kv,
    silu_mul,
)
from kernels.batch_layout import BatchLayout
from kernels.linear import Linear
from kernels.tuned_products import open_tuned_products


class RmsNorm(Protocol):
    """x (T, H), weight (H,) -> (T, H)."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...  # noqa: D102


class AddRmsNorm(Protocol):
    """x (T, H) or in parts, residual (T, H), weight (H,) -> (normed, new residual), both (T, H)."""

    def __call__(  # noqa: D102
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...


class SiluMul(Protocol):
    """gate_up (T, 2I) -> (T, I)."""

    def __call__(self, gate_up: Tensor) -> Tensor: ...  # noqa: D102


class RopeWriteKv(Protocol):
    """qkv (T, (Hq + 2 Hkv) * D) or in parts -> q (T, Hq, D); k and v go to their slots."""

    def __call__(  # noqa: D102
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        kv: Tensor,
        slots: Tensor,
        num_q_heads: int,
    ) -> Tensor: ...


class PagedAttention(Protocol):
    """q (T, Hq, D), kv (N, 2, Hkv, B, D) -> (T, Hq, D)."""

    def __call__(  # noqa: D102
        self, q: Tensor, kv: Tensor, layout: BatchLayout, scale: float
    ) -> Tensor: ...


class CopyBlocks(Protocol):
    """pool (N, L, 2, Hkv, B, D) in place; source, target (n,) int64, no target a source."""

    def __call__(self, pool: Tensor, source: Tensor, target: Tensor) -> None: ...  # noqa: D102


class DrawTokens(Protocol):
    """logits (R, V), temperature (R,), keys (R, 2) -> (tokens (R,), all finite (R,) bool)."""

    def __call__(  # noqa: D102
        self, logits: Tensor, temperature: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class KeepLikeliest(Protocol):
    """logits (K, V) float32 in place; temperature, top_k, top_p, log_min_p (K,)."""

    def __call__(  # noqa: D102
        self,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        log_min_p: Tensor,
        *,
        limits_k: bool,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Ops:
    """One way to compute each op. All of them take tensors of one device."""

    linear: Linear
    linear_in_parts: Linear  # for readers that take (T, N) or parts (S, T, N), see `parts`
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    silu_mul: SiluMul
    rope_write_kv: RopeWriteKv
    paged_attention: PagedAttention
    copy_blocks: CopyBlocks
    draw: DrawTokens
    keep_likeliest: KeepLikeliest


def torch_ops() -> Ops:
    """Plain PyTorch, for any device. Attention waits for the device, since it reads lengths."""
    return Ops(
        linear=linear.reference,
        linear_in_parts=linear.reference,
        rms_norm=rms_norm.reference,
        add_rms_norm=add_rms_norm.reference,
        silu_mul=silu_mul.reference,
        rope_write_kv=rope_write_kv.reference,
        paged_attention=paged_attention.reference,
        copy_blocks=copy_blocks.reference,
        draw=draw.reference,
        keep_likeliest=keep_likeliest.reference,
    )


def triton_ops() -> Ops:
    """Triton kernels, for CUDA. None waits for the device; each is compiled at its first use."""
    return Ops(
        linear=linear.launch,
        linear_in_parts=linear.launch_in_parts,
        rms_norm=rms_norm.launch,
        add_rms_norm=add_rms_norm.launch,
        silu_mul=silu_mul.launch,
        rope_write_kv=rope_write_kv.launch,
        paged_attention=paged_attention.launch,
        copy_blocks=copy_blocks.launch,
        draw=draw.launch,
        keep_likeliest=keep_likeliest.launch,
    )


def ops_for(device: torch.device) -> Ops:
    """The ops to use on `device`."""
    if device.type != "cuda":
        return torch_ops()
    ops, tuned = triton_ops(), open_tuned_products(device)
    if tuned is None:
        return ops
    return replace(
        ops,
        linear=tuned.before(ops.linear),
        linear_in_parts=tuned.before(ops.linear_in_parts),
    )
