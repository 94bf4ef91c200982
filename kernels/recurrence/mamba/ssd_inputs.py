"""The inputs of Mamba-2's state space model, after projection and convolution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.limits import check_state

CHUNK = 64  # number of tokens of a prompt that are computed together


@dataclass(frozen=True, slots=True)
class SsdInputs:
    """The inputs of T tokens: H heads of P numbers, G groups of N numbers for B and for C.

    `xbc` (T, H P + 2 G N) has all heads of x, then groups of B, then groups of C. `dt` is (T, H).
    `xbc` and `dt` may have any row stride. `a_log`, `dt_bias` and `skip` are (H,). `dt_limit` is
    the minimum and maximum of a time step.
    """

    xbc: Tensor
    dt: Tensor
    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor
    dt_limit: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SsdShape:
    """The numbers of heads and groups of a model, and the sizes of a head's x and a group's B."""

    heads: int
    groups: int
    head_dim: int
    state_size: int


def ssd_shape(inputs: SsdInputs, state: Tensor) -> SsdShape:
    """Return the shape of a model with state (S, H, P, N). Raises UnsupportedShape."""
    _, heads, head_dim, state_size = state.shape
    groups = (inputs.xbc.shape[1] - heads * head_dim) // (2 * state_size)
    check_state(heads=heads, groups=groups, columns=head_dim, products=state_size)
    return SsdShape(heads, groups, head_dim, state_size)
