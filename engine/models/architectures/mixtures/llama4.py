"""Llama 4's decoder: rope on neighbouring numbers, layers without rope, one expert per token.

In layers with rope, a token attends only to the keys of its own chunk (`attention_chunk_size`).
Served sequences are at most one chunk long, so that every layer attends to all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.models.architectures.dense.llama import Llama, LlamaFields
from engine.models.architectures.fields.rope_fields import PositiveFloat
from engine.models.architectures.fields.windows import FULL
from engine.models.architectures.mixtures.mixture_model import check_experts
from engine.models.config import (
    TEXT,
    ExpertCount,
    ModelConfig,
    ModelSizes,
    Positive,
    check_value,
    read_json,
)
from engine.models.errors import BadConfig
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig, SharedExpertConfig
from engine.models.layers.mlp import MlpConfig
from engine.models.layers.rope import ProportionalScaling, QueryScaling, RopeConfig
from engine.models.names import SURPLUS_PREFIXES, CheckpointNames
from kernels.experts.scoring import Scoring

CHUNKED = "chunked_attention"
PLACE = "feed_forward."


class _Llama4(LlamaFields, kw_only=True):
    max_position_embeddings: Positive = 131072
    rms_norm_eps: PositiveFloat = 1e-5
    intermediate_size: Positive = 8192
    intermediate_size_mlp: Positive = 16384
    num_local_experts: ExpertCount = 16
    num_experts_per_tok: Positive = 1
    moe_layers: list[int] | None = None
    interleave_moe_layer_step: Positive = 1
    use_qk_norm: bool = True
    # One entry per layer: 1 if the layer has rope, despite the name.
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Positive = 4
    attention_chunk_size: Positive | None = 8192
    attn_temperature_tuning: bool | int = True
    floor_scale: Positive = 8192
    attn_scale: float = 0.1

    @property
    def positions(self) -> int:
        """The number of positions that are served: at most one chunk if any layer is chunked."""
        is_chunked = CHUNKED in (self.layer_types or [CHUNKED])
        chunk = self.attention_chunk_size if is_chunked else None
        return min(self.max_position_embeddings, chunk or self.max_position_embeddings)

    @property
    def rotated(self) -> list[bool]:
        count, interval = self.num_hidden_layers, self.no_rope_layer_interval
        given = self.no_rope_layers or [(one + 1) % interval for one in range(count)]
        if len(given) < count:
            raise BadConfig(f"no_rope_layers has {len(given)} of {count} layers")
        return [bool(one) for one in given[:count]]

    @property
    def with_experts(self) -> Sequence[int]:
        step = self.interleave_moe_layer_step
        return (
            range(step - 1, self.num_hidden_layers, step)
            if self.moe_layers is None
            else (self.moe_layers)
        )


@dataclass(frozen=True, slots=True)
class Llama4:
    """The architecture of Llama 4's text model. Implements `Architecture`."""

    dense: Llama

    @property
    def examples(self) -> tuple[str, ...]:
        return self.dense.examples

    def read(self, path: Path) -> ModelConfig:
        model = self.dense.read(path)
        return replace(model, layers=_layers(self._fields(path), model.layers))

    def sizes(self, path: Path) -> ModelSizes:
        return self.dense.sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return _layers(self._fields(path), self.dense.layers(path))

    def _fields(self, path: Path) -> _Llama4:
        return read_json(path, _Llama4, self.dense.within)


def _layers(raw: _Llama4, layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    for kind in raw.layer_types or ():
        if kind not in (FULL, CHUNKED):
            raise BadConfig(f"layer_types has {kind!r}: there are {FULL} and {CHUNKED}")
    mixture, mlp = _mixture(raw), MlpConfig(raw.intermediate_size_mlp, place=PLACE)
    return tuple(
        replace(
            layer,
            mixer=_attention(raw, layer.attention, is_rotated=is_rotated),
            mlp=mixture if index in raw.with_experts else mlp,
        )
        for index, (layer, is_rotated) in enumerate(zip(layers, raw.rotated, strict=True))
    )


def _attention(raw: _Llama4, attention: AttentionConfig, *, is_rotated: bool) -> AttentionConfig:
    if is_rotated:
        return replace(attention, interleaved=True, norms_heads=raw.use_qk_norm)
    return replace(attention, rope=None if attention.rope is None else _unrotated(raw))


def _unrotated(raw: _Llama4) -> RopeConfig | None:
    """Return the rope config of a layer without rotation. The layer may still scale queries."""
    if not raw.attn_temperature_tuning:
        return None
    queries = QueryScaling(raw.attn_scale, raw.floor_scale, shift=1)
    return RopeConfig(1.0, ProportionalScaling(0.0), queries=queries)


def _mixture(raw: _Llama4) -> MixtureConfig:
    check_value("num_experts_per_tok", raw.num_experts_per_tok, 1)
    shared = MlpConfig(raw.intermediate_size, place="shared_expert.")
    return check_experts(
        MixtureConfig(
            raw.intermediate_size,
            raw.num_local_experts,
            top_k=1,
            renormalise=False,
            place=PLACE,
            router="router",
            packed=True,
            halves=True,
            weighs_inputs=True,
            scoring=Scoring(sigmoid=True),
            shared=SharedExpertConfig(shared, weighted=False),
        )
    )


_DENSE = Llama(
    "llama4",
    default_head_dim=128,
    reads_attention_bias=True,
    default_theta=5e5,
    fields=_Llama4,
    examples=("Llama 4 Scout", "Llama 4 Maverick"),
)
_NAMES = CheckpointNames((("language_model.", ""), ("model.language_model.", "model.")))
LLAMA4 = Llama4(_DENSE)
LLAMA4_SEEING = Llama4(
    replace(
        _DENSE,
        within=TEXT,
        names=replace(_NAMES, surplus=(*SURPLUS_PREFIXES, "vision_model.", "model.vision_model.")),
    )
)
