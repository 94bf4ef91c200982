"""The inputs of Mamba-2's state space model, as projected and convolved."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.limits import check_state

CHUNK = 64  # tokens of a prompt that are computed together


@dataclass(frozen=True, slots=True)
class SsdInputs:
    """The inputs of T tokens, for H heads of P numbers and G groups of B and C of N numbers.

    `xbc` (T, H P + 2 G N) are heads of x, groups of B, groups of C. `dt` (T, H). `xbc` and `dt` may
    have any row stride. `a_log`, `dt_bias`, `skip` (H,). `dt_limit` are the minimum and maximum
    time step.
    """

    xbc: Tensor
    dt: Tensor
    a_log: Tensor
    dt_bias: Tensor
    skip: Tensor
    dt_limit: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SsdShape:
    """The numbers of heads and groups of a model, and the sizes of a head and of a group's B."""

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
