"""The router's choice of experts for each token: those with the k largest logits.

    weights = softmax(logits), of all experts, in float32
    with `renormalise` divided by the sum of the chosen ones

Of equal logits the expert with the lowest number is taken. Whatever the logits are, NaN included,
the experts that are chosen exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2


@dataclass(frozen=True, slots=True)
class Routed:
    """Choice of `experts` (T, k) int32, best first, with `weights` (T, k) float32."""

    experts: Tensor
    weights: Tensor


RouteOp = Callable[[Tensor, int, bool], Routed]
"""logits (T, E), k, renormalise -> the k experts of each token."""


def reference(logits: Tensor, top_k: int, renormalise: bool) -> Routed:
    """Choose experts by logits (T, E) of any float dtype; k at most E. Plain PyTorch."""
    probabilities = torch.softmax(logits.float(), -1)
    ordered = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    weights, experts = ordered.values[:, :top_k], ordered.indices[:, :top_k]
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routed(experts.int().contiguous(), weights.contiguous())


@triton.jit
def _kernel(
    logits: tl.tensor,
    experts: tl.tensor,
    weights: tl.tensor,
    row_stride: tl.tensor,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, E_PADDED), tl.arange(0, K_PADDED)
    inside = expert < E
    given = tl.load(logits + row * row_stride + expert, mask=inside, other=0.0).to(tl.float32)
    given = tl.where(given == given, given, -1e30)  # NaN becomes the least score
    given = tl.where(inside, tl.minimum(tl.maximum(given, -1e30), 1e30), float("-inf"))
    largest = tl.max(given, axis=0)
    total = tl.sum(tl.exp(given - largest), axis=0)
    chosen = tl.zeros([K_PADDED], tl.int32)
    weight = tl.zeros([K_PADDED], tl.float32)
    for k in tl.static_range(K):
        best, number = tl.max(
            given, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        chosen = tl.where(place == k, number, chosen)
        weight = tl.where(place == k, tl.exp(best - largest) / total, weight)
        given = tl.where(expert == number, float("-inf"), given)
    if RENORMALISE:
        weight = weight / tl.sum(weight, axis=0)
    tl.store(experts + row * K + place, chosen, mask=place < K)
    tl.store(weights + row * K + place, weight, mask=place < K)


def launch(logits: Tensor, top_k: int, renormalise: bool) -> Routed:
    """Compute `reference` on the device, for contiguous rows."""
    tokens, num_experts = logits.shape
    experts = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if tokens:
        _kernel[(tokens,)](
            logits,
            experts,
            weights,
            logits.stride(0),
            E=num_experts,
            E_PADDED=next_power_of_2(num_experts),
            K=top_k,
            K_PADDED=next_power_of_2(top_k),
            RENORMALISE=renormalise,
            num_warps=1 if num_experts <= 128 else 4,
            **dependent_launch(logits.device),
        )
    return Routed(experts, weights)
