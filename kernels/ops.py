"""The ops that compute a model. They are chosen once, by device.

Shapes, dtypes and errors of an op are documented in its module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kernels.adapters import experts, low_rank
from kernels.adapters.experts import AdaptedMixture
from kernels.adapters.slots import SlotMatrices, TokenSlots
from kernels.attention import paged_attention
from kernels.attention.batch_layout import BatchLayout
from kernels.attention.kv import copy_blocks, rope_write_kv
from kernels.attention.variant import AttentionVariant
from kernels.collectives.peer_rows import PeerProduct
from kernels.experts import mixture, route
from kernels.experts.mixture import MixtureOp
from kernels.experts.route import RouteOp
from kernels.latents import latent_attention, write_latents
from kernels.latents.latent_attention import LatentAttention
from kernels.latents.write_latents import WriteLatents
from kernels.linear import fp8_linear, fp8_rows, int4_linear, linear
from kernels.linear.fp8_linear import Fp8LinearOp
from kernels.linear.fp8_rows import Fp8Rows, Scaling
from kernels.linear.int4_linear import Int4LinearOp
from kernels.linear.linear import LinearOp
from kernels.norms import add_rms_norm, gate_mul, rms_norm
from kernels.norms.gate import Gate
from kernels.recurrence import conv, gated_norm
from kernels.recurrence.delta import gated_delta
from kernels.recurrence.mamba import ssd
from kernels.recurrence.state_rows import StateRows
from kernels.sampling import penalise, sample, top_k_top_p

RmsNormOp = Callable[[Tensor, Tensor, float], Tensor]
"""x (T, H), weight (H,), eps -> (T, H)."""

AddRmsNorm = Callable[[Tensor | PeerProduct, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""x (T, H), in parts or of ranks, residual (T, H), weight, eps -> (normed, new residual), of its
shape."""

GateMul = Callable[[Tensor, Gate], Tensor]
"""gate_up (T, 2I) -> (T, I)."""

ToFp8 = Callable[[Tensor | Fp8Rows, Scaling, Tensor | None], Fp8Rows]
"""x (T, K), scales by token or group, static scale (1,) or None -> (T, K); fp8 is not changed."""

AddRmsNormFp8 = Callable[
    [Tensor | PeerProduct, Tensor, Tensor, float, Scaling], tuple[Fp8Rows, Tensor]
]
"""Like AddRmsNorm, but the normed rows are in fp8."""

GateMulFp8 = Callable[[Tensor, Gate, Scaling], Fp8Rows]
"""Like GateMul, but the result is in fp8."""


class RopeWriteKv(Protocol):
    """An interface to the op between QKV product and attention (`rope_write_kv`)."""

    def __call__(
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
        dtype: torch.dtype,
        norms_values: bool = ...,
        gated: bool = ...,
    ) -> Tensor:
        """Return q (T, Hq, D) of `dtype`. Write k and v to `slots`. qkv may be in parts."""
        ...


PagedAttention = Callable[[Tensor, Tensor, BatchLayout, AttentionVariant, Tensor | None], Tensor]
"""q (T, Hq, D), kv (N, 2, Hkv, B, D), layout, variant, sinks (Hq,) -> (T, Hq, D)."""

CopyBlocks = Callable[[Tensor, Tensor, Tensor], None]
"""Copy blocks in pool (N, L, 2, Hkv, B, D). source, target (n,) int64; no target is a source."""

SampleTokens = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""logits (R, V), temperature (R,), keys (R, 2) -> (tokens (R,), whether finite (R,) bool)."""

TopKTopP = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""logits (R, V) in place; rows, temperature, top_k, top_p, log_min_p (K,)."""

Penalise = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""logits (R, V) float32 in place, rows, batch_slots, seen (S, V) int32, presence, frequency,
repetition; all but `seen` (K,), see `penalise`."""

CausalConv = Callable[[Tensor, Tensor, Tensor | None, Tensor, StateRows], Tensor]
"""x (T, C), weight (C, W), bias (C,), state (S, C, W - 1) in place, rows -> silu(conv), (T, C)."""

GatedDelta = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, StateRows], Tensor]
"""qkv (T, 2 Hk K + Hv V), a, b (T, Hv), a_log, dt_bias (Hv,), state (S, Hv, K, V) float32 in place,
rows -> (T, Hv V)."""

Ssd = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, tuple[float, float], Tensor, StateRows], Tensor
]
"""xbc (T, H P + 2 G N), dt (T, H), a_log, dt_bias, skip (H,), limits of dt, state (S, H, P, N)
float32 in place, rows -> (T, H P)."""

GatedNorm = Callable[[Tensor, Tensor, Tensor, float, int, bool], Tensor]
"""x, gate (T, C), weight (C,) or (group,), eps, group, whether the gate comes first -> (T, C)."""

OrderSlots = Callable[[Tensor, int], TokenSlots]
"""slots of tokens (T,) int32, number of slots -> the order of tokens by slot."""

AddAdapters = Callable[[Tensor, Tensor, SlotMatrices, TokenSlots], Tensor]
"""product (T, N) or parts in place, x (T, K), matrices, slots of tokens -> the product."""


@dataclass(frozen=True, slots=True)
class Ops:
    """An implementation of each op, for tensors of one device.

    `adapters` are the adapter slots of the step's tokens, if any.
    """

    linear: LinearOp
    linear_split_k: LinearOp  # for outputs whose readers accept (T, N) or split-K parts (S, T, N)
    linear_fp8: Fp8LinearOp
    linear_fp8_split_k: Fp8LinearOp
    linear_int4: Int4LinearOp
    linear_int4_split_k: Int4LinearOp
    to_fp8: ToFp8
    rms_norm: RmsNormOp
    add_rms_norm: AddRmsNorm
    add_rms_norm_fp8: AddRmsNormFp8
    gate_mul: GateMul
    gate_mul_fp8: GateMulFp8
    route: RouteOp
    mixture: MixtureOp
    rope_write_kv: RopeWriteKv
    paged_attention: PagedAttention
    write_latents: WriteLatents
    latent_attention: LatentAttention
    copy_blocks: CopyBlocks
    causal_conv: CausalConv
    gated_delta: GatedDelta
    ssd: Ssd
    gated_norm: GatedNorm
    sample: SampleTokens
    top_k_top_p: TopKTopP
    penalise: Penalise
    order_slots: OrderSlots
    add_adapters: AddAdapters
    adapted_mixture: AdaptedMixture
    adapters: TokenSlots | None = None

    def of_tokens(self, slots: Tensor, num_slots: int) -> Ops:
        """Return the ops for a step's tokens, whose adapter slots are `slots` (T,) int32."""
        return replace(self, adapters=self.order_slots(slots, num_slots))


def torch_ops() -> Ops:
    """Return plain PyTorch ops, for any device. To read lengths, attention waits for the device."""
    return Ops(
        linear=linear.on_cpu,
        linear_split_k=linear.on_cpu,
        linear_fp8=fp8_linear.reference,
        linear_fp8_split_k=fp8_linear.reference,
        linear_int4=int4_linear.reference,
        linear_int4_split_k=int4_linear.reference,
        to_fp8=fp8_rows.reference,
        rms_norm=rms_norm.reference,
        add_rms_norm=add_rms_norm.reference,
        add_rms_norm_fp8=add_rms_norm.reference_fp8,
        gate_mul=gate_mul.reference,
        gate_mul_fp8=gate_mul.reference_fp8,
        route=route.reference,
        mixture=mixture.reference,
        rope_write_kv=rope_write_kv.reference,
        paged_attention=paged_attention.reference,
        write_latents=write_latents.reference,
        latent_attention=latent_attention.reference,
        copy_blocks=copy_blocks.reference,
        causal_conv=conv.reference,
        gated_delta=gated_delta.reference,
        ssd=ssd.reference,
        gated_norm=gated_norm.reference,
        sample=sample.reference,
        top_k_top_p=top_k_top_p.reference,
        penalise=penalise.reference,
        order_slots=low_rank.reference_slots,
        add_adapters=low_rank.reference,
        adapted_mixture=experts.reference,
    )


def triton_ops() -> Ops:
    """Return Triton ops, for CUDA.

    Triton ops never wait for the device. They are compiled at first use.
    """
    return Ops(
        linear=linear.launch,
        linear_split_k=linear.launch_split_k,
        linear_fp8=fp8_linear.launch,
        linear_fp8_split_k=fp8_linear.launch_split_k,
        linear_int4=int4_linear.launch,
        linear_int4_split_k=int4_linear.launch_split_k,
        to_fp8=fp8_rows.launch,
        rms_norm=rms_norm.launch,
        add_rms_norm=add_rms_norm.launch,
        add_rms_norm_fp8=add_rms_norm.launch_fp8,
        gate_mul=gate_mul.launch,
        gate_mul_fp8=gate_mul.launch_fp8,
        route=route.launch,
        mixture=mixture.launch,
        rope_write_kv=rope_write_kv.launch,
        paged_attention=paged_attention.launch,
        write_latents=write_latents.launch,
        latent_attention=latent_attention.launch,
        copy_blocks=copy_blocks.launch,
        causal_conv=conv.launch,
        gated_delta=gated_delta.launch,
        ssd=ssd.launch,
        gated_norm=gated_norm.launch,
        sample=sample.launch,
        top_k_top_p=top_k_top_p.launch,
        penalise=penalise.launch,
        order_slots=low_rank.launch_slots,
        add_adapters=low_rank.launch,
        adapted_mixture=experts.launch,
    )


def ops_for(device: torch.device) -> Ops:
    """Choose the ops for `device`."""
    return triton_ops() if device.type == "cuda" else torch_ops()
