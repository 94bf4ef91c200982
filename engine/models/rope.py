"""Rotary position embedding: as config.json has it, and the table that heads are rotated by.

Knows: the scalings none, linear and llama3, in both spellings, and what each makes of the
frequencies. Does not know: how the table is applied (`kernels`); nor torch before there is a table
to make.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from engine.models.errors import BadConfig, UnsupportedModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T", bound=msgspec.Struct)
RopeKind = Literal["default", "linear", "llama3"]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base and scaling of the rotary frequencies; the last three are of llama3 alone."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_positions: int = 0


class _Scaling(msgspec.Struct):
    rope_type: str | None = None
    type: str | None = None  # the older spelling
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: float = 1.0


class _LinearScaling(msgspec.Struct):
    factor: PositiveFloat


class _Llama3(msgspec.Struct):
    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_max_position_embeddings: Annotated[int, msgspec.Meta(gt=0)] | None = None


def parse_rope(scaling: dict[str, Any] | None, theta: float, max_positions: int) -> RopeConfig:
    """Read `rope_scaling` or the newer `rope_parameters`, which carries the base as well.

    Raises BadConfig for a malformed one, UnsupportedModel for a scaling that is not served.
    """
    if scaling is None:
        return RopeConfig(theta)
    if any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedModel("rope_parameters differ from layer to layer, which is not served")
    common = _convert(scaling, _Scaling)
    if common.partial_rotary_factor != 1.0:
        raise UnsupportedModel("partial_rotary_factor: only whole heads are rotated")
    theta = common.rope_theta or theta
    kind = common.rope_type or common.type or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor=_convert(scaling, _LinearScaling).factor)
    if kind == "llama3":
        return _llama3(_convert(scaling, _Llama3), theta, max_positions)
    raise UnsupportedModel(f"rope scaling {kind!r}: served are default, linear and llama3")


def _llama3(scaling: _Llama3, theta: float, max_positions: int) -> RopeConfig:
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise BadConfig("rope scaling: high_freq_factor must be above low_freq_factor")
    return RopeConfig(
        theta,
        "llama3",
        factor=scaling.factor,
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        original_max_positions=scaling.original_max_position_embeddings or max_positions,
    )


def _convert(scaling: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(scaling, kind)
    except msgspec.ValidationError as error:
        raise BadConfig(f"rope scaling: {error}") from error


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, (head_dim / 2,) float32, on the CPU."""
    import torch  # only who makes tensors has it

    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / torch.pow(rope.theta, exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    return _llama3_frequencies(rope, plain)


def _llama3_frequencies(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Llama 3.1's scaling (Meta; `_compute_llama3_parameters` of transformers).

    Frequencies with fewer than `low_freq_factor` waves in the original context are divided by
    `factor`, those with more than `high_freq_factor` are kept, and those between are blended.
    """
    waves_in_context = rope.original_max_positions * plain / (2 * math.pi)
    kept = (waves_in_context - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / rope.factor + kept * plain


def rope_table(
    rope: RopeConfig | None, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """Cosines in the left half and sines in the right, (num_positions, head_dim) float32.

    Without rope they are those of an angle of zero, which changes no finite number.
    """
    import torch

    plain = torch.zeros(head_dim // 2) if rope is None else inverse_frequencies(rope, head_dim)
    frequencies = plain.to(device)
    positions = torch.arange(num_positions, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
