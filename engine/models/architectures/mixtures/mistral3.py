"""Ministral 3, which scales queries by position, and the decoders of Mistral's vision models.

For Mistral 3, `text_config.model_type` names the decoder. Vision tensors are not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.models.architectures.architecture import Architecture
from engine.models.architectures.dense.llama import MISTRAL, Llama, LlamaFields
from engine.models.architectures.fields.rope_fields import PositiveFloat
from engine.models.architectures.fields.windows import in_every_layer
from engine.models.architectures.mixtures.deepseek import mistral4
from engine.models.config import TEXT, ModelConfig, ModelSizes, read_json, read_sizes
from engine.models.errors import UnsupportedModel
from engine.models.layers.layer import LayerConfig
from engine.models.names import CheckpointNames


class _Ministral3(LlamaFields, kw_only=True):
    rms_norm_eps: PositiveFloat = 1e-5


class _Typed(msgspec.Struct):
    model_type: str | None = None


@dataclass(frozen=True, slots=True)
class Seeing:
    """A vision model. The type of its decoder selects the reader. Implements `Architecture`."""

    decoders: Mapping[str, Architecture]
    examples: tuple[str, ...]

    def read(self, path: Path) -> ModelConfig:
        return self._decoder(path).read(path)

    def sizes(self, path: Path) -> ModelSizes:
        return read_sizes(path)

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        return self._decoder(path).layers(path)

    def _decoder(self, path: Path) -> Architecture:
        given = read_json(path, _Typed, TEXT).model_type
        found = self.decoders.get(given or "")
        if found is None:
            served = ", ".join(self.decoders)
            raise UnsupportedModel(f"{TEXT}.model_type {given!r}: served are {served}")
        return found


MINISTRAL3 = Llama(
    "ministral3",
    default_head_dim=128,
    windows=in_every_layer,
    default_theta=1e6,
    fields=_Ministral3,
    scales_queries=True,
    examples=("Devstral 2",),
)
_NAMES = CheckpointNames((("language_model.", ""), ("model.language_model.", "model.")))
MISTRAL3 = Seeing(
    {
        "mistral": replace(MISTRAL, within=TEXT, names=_NAMES),
        "ministral3": replace(MINISTRAL3, within=TEXT, names=_NAMES),
        "mistral4": mistral4(TEXT, _NAMES),
    },
    ("Mistral Small 3.1", "Ministral 3 3B to 14B", "Mistral Small 4"),
)
