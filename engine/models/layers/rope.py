"""The rotary position embedding: its frequencies, and its table of cosines and sines.

Torch is imported only to compute tables.

Elsewhere: the fields of config.json (`architectures.rope_fields`), and the rotation of queries and
keys (`kernels`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """A scaling that divides every frequency by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The scaling of Llama 3.1 (Meta; `_compute_llama3_parameters` of transformers).

    Frequencies with fewer than `low_freq_factor` periods in the original context are divided by
    `factor`. Those with more than `high_freq_factor` periods are unchanged. Between the two, the
    results are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """The YaRN scaling (arXiv 2309.00071; `_compute_yarn_parameters` of transformers).

    Pairs that rotate more than `beta_fast` times in the original context keep their frequency. The
    frequency of pairs that rotate less than `beta_slow` times is divided by `factor`. Between the
    two, the results are interpolated by the index of the pair. With `truncate`, the indices of both
    bounds are rounded.
    """

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """The LongRoPE scaling of Phi-3 (arXiv 2402.13753).

    The frequency of each pair is divided by its entry in `long` if sequences may become longer than
    the original context, else by its entry in `short`. The choice is the same for all sequences
    (`for_positions`), because cached keys cannot be rotated again. See
    `_compute_longrope_parameters` of transformers.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class PairScaling:
    """A scaling that divides the frequency of each pair by a divisor of its own."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """A scaling that rotates only the first pairs, a fraction `part` of all pairs.

    The rotated pairs have the same frequencies as if all were rotated, divided by `factor`. See
    `_compute_proportional_rope_parameters` of transformers.
    """

    part: float
    factor: float = 1.0

    def pairs(self, head_dim: int) -> int:
        """Return the number of rotated pairs of a head."""
        return int(self.part * head_dim // 2)


Scaling = (
    ProportionalScaling
    | LinearScaling
    | Llama3Scaling
    | YarnScaling
    | LongRopeScaling
    | PairScaling
)


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """A scaling of queries by position (Llama 4; `get_llama_4_attn_scale` of transformers).

    The factor is 1 + beta * log(1 + floor((position + shift) / context)).
    """

    beta: float
    context: int
    shift: int = 0  # 1 if the model counts positions from 1


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The base and scaling of rotary frequencies, and the factor on cosines and sines.

    `partial` is the fraction of a head that is rotated, from its beginning on. `queries` is the
    scaling of queries, if any.
    """

    theta: float
    scaling: Scaling | None = None
    attention_factor: float = 1.0
    partial: float = 1.0
    queries: QueryScaling | None = None

    def rotary_dim(self, head_dim: int) -> int:
        """Return the number of rotated elements of a head."""
        return int(head_dim * self.partial)

    def for_positions(self, num_positions: int) -> RopeConfig:
        """Return the config for sequences of up to `num_positions` tokens."""
        if not isinstance(self.scaling, LongRopeScaling):
            return self
        is_long = num_positions > self.scaling.original_max_positions
        factors = self.scaling.long if is_long else self.scaling.short
        return replace(self, scaling=PairScaling(factors))


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the radians per position of each rotated pair, (rotary_dim / 2,) float32, on CPU."""
    import torch  # imported here, so that configs can be read without torch

    size = rope.rotary_dim(head_dim)
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    plain = 1.0 / torch.pow(rope.theta, exponents)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case Llama3Scaling() as llama3:
            return _llama3_frequencies(llama3, plain)
        case YarnScaling() as yarn:
            return _yarn_frequencies(yarn, plain, rope.theta)
        case ProportionalScaling(_, factor) as proportional:
            plain[proportional.pairs(head_dim) :] = 0.0
            return plain / factor
        case PairScaling(factors):
            return plain / torch.tensor(factors, dtype=torch.float32)
        case LongRopeScaling():
            raise AssertionError("whether sequences are long has not been decided")


def _llama3_frequencies(scaling: Llama3Scaling, plain: Tensor) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    waves_in_context = scaling.original_max_positions * plain / (2 * math.pi)
    if low == high:  # the bounds are equal in Llama 4 Scout's config
        return (plain / scaling.factor).where(waves_in_context < low, plain)
    kept = ((waves_in_context - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn_frequencies(scaling: YarnScaling, plain: Tensor, theta: float) -> Tensor:
    import torch

    pairs = plain.shape[0]
    first = _place_of(scaling.beta_fast, scaling, pairs, theta)
    last = _place_of(scaling.beta_slow, scaling, pairs, theta)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first or 0.001  # with equal bounds, a step function
    slowed = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return slowed * plain / scaling.factor + (1 - slowed) * plain


def _place_of(turns: float, scaling: YarnScaling, pairs: int, theta: float) -> float:
    """Return the (fractional) index of the pair that rotates `turns` times in that context."""
    positions_a_radian = scaling.original_max_positions / (turns * 2 * math.pi)
    return pairs * math.log(positions_a_radian) / math.log(theta)


def rope_table(
    rope: RopeConfig | None, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """Tabulate cosines (left half) and sines (right), (num_positions, rotary_dim) float32.

    Without rope, all angles are zero, so that the rotation changes nothing.
    """
    import torch

    if rope is None:
        plain = torch.zeros(head_dim // 2)
    else:
        plain = inverse_frequencies(rope.for_positions(num_positions), head_dim)
    frequencies = plain.to(device)
    positions = torch.arange(num_positions, dtype=torch.float32, device=device)
    angles = positions[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table if rope is None else table.mul_(rope.attention_factor)


def query_scales(
    rope: RopeConfig | None, num_positions: int, device: torch.device
) -> Tensor | None:
    """Tabulate the factors on queries, (num_positions, 1, 1) float32. Return None if all are 1."""
    if rope is None or rope.queries is None:
        return None
    import torch

    positions = torch.arange(num_positions, device=device)
    waves = ((positions + rope.queries.shift) // rope.queries.context).float()
    return (1 + rope.queries.beta * torch.log1p(waves))[:, None, None]
