"""The inputs of a gated delta rule, as projected and convolved."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.limits import check_state

CHUNK = 64  # tokens of a prompt that are computed together
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """The inputs of T tokens, for Hv heads of values and Hk of queries and of keys.

    `qkv` (T, 2 Hk K + Hv V) are heads of queries, of keys, of values. `a`, `b` (T, Hv). `qkv`, `a`
    and `b` may have any row stride. `a_log`, `dt_bias` (Hv,).
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
