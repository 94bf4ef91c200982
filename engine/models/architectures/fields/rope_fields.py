"""The fields of config.json for rotary position embedding.

    rope_theta, rope_scaling         the older fields
    rope_parameters                  the newer field, which includes the base
    rope_parameters.full_attention   the newer field if the rope differs between layer types

`layers.rope` computes the scalings. This module does not import torch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec

from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    QueryScaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)

T = TypeVar("T")
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
# Values of `rope_type` that are served.
ROPES = ("default", "linear", "llama3", "longrope", "proportional", "yarn")


class _Common(msgspec.Struct):
    rope_type: str | None = None
    type: str | None = None  # older name of `rope_type`
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class _Queries(msgspec.Struct):
    llama_4_scaling_beta: Annotated[float, msgspec.Meta(ge=0)] | None = None
    original_max_position_embeddings: PositiveInt | None = None


class _Linear(msgspec.Struct):
    factor: PositiveFloat


class _Proportional(msgspec.Struct):
    factor: PositiveFloat = 1.0


class _Llama3(msgspec.Struct):
    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_max_position_embeddings: PositiveInt | None = None


class _Yarn(msgspec.Struct):
    factor: PositiveFloat | None = None
    original_max_position_embeddings: PositiveInt | None = None
    beta_fast: PositiveFloat | None = None
    beta_slow: PositiveFloat | None = None
    truncate: bool = True
    attention_factor: PositiveFloat | None = None
    attn_factor: PositiveFloat | None = None  # older name of the attention factor
    mscale: float | None = None
    mscale_all_dim: float | None = None


class _LongRope(msgspec.Struct):
    short_factor: list[PositiveFloat]
    long_factor: list[PositiveFloat]
    factor: PositiveFloat | None = None
    original_max_position_embeddings: Annotated[int, msgspec.Meta(gt=1)] | None = None
    attention_factor: PositiveFloat | None = None


def parse_rope(scaling: dict[str, Any] | None, theta: float, max_positions: int) -> RopeConfig:
    """Read `rope_scaling` or `rope_parameters`.

    `theta` is the default of the base. Raises BadConfig for malformed fields, UnsupportedModel for
    a scaling that is not served.
    """
    if scaling is None:
        return RopeConfig(theta)
    if any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedModel("rope_parameters differ from layer to layer, which is not served")
    common = _convert(scaling, _Common)
    rope = _scaled(scaling, common, common.rope_theta or theta, max_positions)
    if isinstance(rope.scaling, ProportionalScaling):
        return rope
    return replace(rope, partial=common.partial_rotary_factor)


def parse_query_scaling(scaling: dict[str, Any] | None) -> QueryScaling | None:
    """Read Ministral 3's scaling of queries from its rope fields. Raises BadConfig."""
    raw = _convert(scaling or {}, _Queries)
    beta, context = raw.llama_4_scaling_beta, raw.original_max_position_embeddings
    if not beta:
        return None
    if context is None:
        raise BadConfig(
            "rope scaling: llama_4_scaling_beta without original_max_position_embeddings"
        )
    return QueryScaling(beta, context)


def parse_score_factor(scaling: dict[str, Any] | None, max_positions: int) -> float:
    """Return DeepSeek's extra factor on attention scores: the square of YaRN's mscale."""
    raw = _convert(scaling or {}, _Yarn)
    common = _convert(scaling or {}, _Common)
    if (common.rope_type or common.type or "default") == "default" or not raw.mscale_all_dim:
        return 1.0
    original = raw.original_max_position_embeddings or max_positions
    return _mscale(raw.factor or max_positions / original, raw.mscale_all_dim) ** 2


def _scaled(
    scaling: dict[str, Any], common: _Common, theta: float, max_positions: int
) -> RopeConfig:
    kind = common.rope_type or common.type or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, LinearScaling(_convert(scaling, _Linear).factor))
    if kind == "proportional":
        factor = _convert(scaling, _Proportional).factor
        return RopeConfig(theta, ProportionalScaling(common.partial_rotary_factor, factor))
    if kind == "llama3":
        return RopeConfig(theta, _llama3(_convert(scaling, _Llama3), max_positions))
    if kind == "yarn":
        return _yarn(_convert(scaling, _Yarn), theta, max_positions)
    if kind == "longrope":
        return _long_rope(_convert(scaling, _LongRope), theta, max_positions)
    raise UnsupportedModel(f"rope_type {kind!r}: served are {', '.join(ROPES)}")


def parse_rope_by_type(
    parameters: dict[str, Any] | None, thetas: dict[str, float], max_positions: int
) -> dict[str, RopeConfig]:
    """Read the rope of each layer type from `rope_parameters`.

    `thetas` maps each layer type to its default base. A type that is absent or null has the default
    base and no scaling. Raises the errors of `parse_rope`.
    """
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    for name in given:
        if name not in thetas:
            raise BadConfig(f"rope_parameters has {name!r}: types of layer are {', '.join(thetas)}")
    return {
        name: parse_rope(_convert(given.get(name, {}), dict[str, Any]), theta, max_positions)
        for name, theta in thetas.items()
    }


def stretched_positions(rope: RopeConfig, max_positions: int) -> int:
    """Return the number of positions, which may be larger with YaRN.

    Model cards tell users to add YaRN to config.json without changing `max_position_embeddings`, so
    the extension is computed here.
    """
    match rope.scaling:
        case YarnScaling(factor, original):
            return max(max_positions, int(factor * original))
        case _:
            return max_positions


def _llama3(raw: _Llama3, max_positions: int) -> Scaling:
    if raw.high_freq_factor < raw.low_freq_factor:
        raise BadConfig("rope scaling: high_freq_factor must not be below low_freq_factor")
    original = raw.original_max_position_embeddings or max_positions
    return Llama3Scaling(raw.factor, raw.low_freq_factor, raw.high_freq_factor, original)


def _yarn(raw: _Yarn, theta: float, max_positions: int) -> RopeConfig:
    original = raw.original_max_position_embeddings or max_positions
    factor = raw.factor or max_positions / original
    fast, slow = raw.beta_fast or 32.0, raw.beta_slow or 1.0
    if theta <= 1:
        raise BadConfig(f"rope_theta {theta}: with YaRN it must be above 1")
    if fast < slow:
        raise BadConfig("rope scaling: beta_fast must not be below beta_slow")
    scaling = YarnScaling(factor, original, fast, slow, raw.truncate)
    return RopeConfig(theta, scaling, raw.attention_factor or _yarn_attention_factor(raw, factor))


def _yarn_attention_factor(raw: _Yarn, factor: float) -> float:
    """Return YaRN's attention factor.

    If `mscale` and `mscale_all_dim` of DeepSeek are set, the factor is their ratio. If not, the
    factor is multiplied by `attn_factor`, as YaRN's authors and vLLM do, although `transformers`
    ignores this field. In DeepSeek-R1-0528-Qwen3-8B, the product is 1.
    """
    if raw.mscale and raw.mscale_all_dim:
        return _mscale(factor, raw.mscale) / _mscale(factor, raw.mscale_all_dim)
    return _mscale(factor, 1.0) * (raw.attn_factor or 1.0)


def _mscale(factor: float, times: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0


def _long_rope(raw: _LongRope, theta: float, max_positions: int) -> RopeConfig:
    original = raw.original_max_position_embeddings or max(2, max_positions)
    scaling = LongRopeScaling(tuple(raw.short_factor), tuple(raw.long_factor), original)
    factor = raw.factor or max_positions / original
    usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeConfig(theta, scaling, raw.attention_factor or usual)


def check_rotary(rope: RopeConfig, head_dim: int, *, served: bool = False) -> None:
    """Check that a rope fits heads of this size.

    Raises BadConfig. Raises UnsupportedModel if only a part of a head is rotated and `served` is
    False.
    """
    if rope.partial != 1.0 and not served:
        raise UnsupportedModel(f"partial_rotary_factor {rope.partial}: served is 1")
    size = rope.rotary_dim(head_dim)
    if not size or size % 2:
        raise BadConfig(
            f"partial_rotary_factor {rope.partial} of head_dim {head_dim} is {size} numbers, and "
            "they are rotated in pairs"
        )
    if isinstance(rope.scaling, LongRopeScaling):
        for name, factors in (("short", rope.scaling.short), ("long", rope.scaling.long)):
            if 2 * len(factors) != size:
                raise BadConfig(
                    f"rope scaling: {name}_factor has {len(factors)} numbers, for {size // 2} pairs"
                )


def _convert(scaling: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(scaling, kind)
    except msgspec.ValidationError as error:
        raise BadConfig(f"rope scaling: {error}") from error
