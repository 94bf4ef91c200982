"""The inputs of a gated delta rule, after projection and convolution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.limits import check_state

CHUNK = 64  # number of tokens of a prompt that are computed together
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """The inputs of T tokens, for Hv value heads, Hk query heads and Hk key heads.

    `qkv` (T, 2 Hk K + Hv V) has all heads of queries, then of keys, then of values. `a` and `b` are
    (T, Hv). `qkv`, `a` and `b` may have any row stride. `a_log` and `dt_bias` are (Hv,).
    """

    qkv: Tensor
    a: Tensor
    b: Tensor
    a_log: Tensor
    dt_bias: Tensor


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The numbers of value heads and key heads of a rule, and the sizes of a head."""

    heads: int
    key_heads: int
    keys: int
    values: int


def delta_shape(inputs: DeltaInputs, state: Tensor) -> DeltaShape:
    """Return the shape of a rule with state (S, Hv, K, V). Raises UnsupportedShape."""
    _, heads, keys, values = state.shape
    key_heads = (inputs.qkv.shape[1] - heads * values) // (2 * keys)
    check_state(heads=heads, groups=key_heads, columns=values, products=keys)
    return DeltaShape(heads, key_heads, keys, values)
