"""The adapter_config.json of a PEFT adapter: its rank and scale, or why it is not served.

Only fields that change nothing of what is computed, or that are read here, may be set. A field that
a later PEFT adds is refused by its name until somebody has looked at what it changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.models.adapters.errors import AdapterRefused
from engine.models.model_files import decode

# Fields of the training, of PEFT itself, or of which tensors are in the file, which is read anyway.
_WITHOUT_EFFECT = frozenset(
    {
        "peft_type",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "task_type",
        "inference_mode",
        "peft_version",
        "target_modules",
        "exclude_modules",
        "lora_dropout",
        "init_lora_weights",
        "layers_to_transform",
        "layers_pattern",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "qalora_group_size",
        "runtime_config",
        "ensure_weight_tying",
    }
)
_READ = frozenset({"r", "lora_alpha", "use_rslora", "bias"})
MOST_RANK = 1024  # far beyond any adapter; the engine's own bound is lower


class AdapterConfig(msgspec.Struct, frozen=True):
    """Rank and scale of an adapter: its product is `scale` * B A x, with A of `rank` rows."""

    rank: int
    alpha: float
    is_rank_stabilised: bool  # rsLoRA: divided by the root of the rank

    @property
    def scale(self) -> float:
        """The factor of the product."""
        return self.alpha / (math.sqrt(self.rank) if self.is_rank_stabilised else self.rank)


class _Wire(msgspec.Struct):
    r: int
    lora_alpha: float
    use_rslora: bool = False
    bias: str = "none"


def read_adapter_config(content: bytes) -> AdapterConfig:
    """Read the JSON of an adapter_config.json; raises AdapterRefused, naming the field."""
    try:
        fields = decode(content, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AdapterRefused(f"adapter_config.json: {error}") from error
    if fields.get("peft_type") != "LORA":
        raise AdapterRefused("adapter_config.json: peft_type is not LORA, the one that is served")
    _refuse_unserved(fields)
    try:
        wire = msgspec.convert(fields, _Wire)
    except msgspec.ValidationError as error:
        raise AdapterRefused(f"adapter_config.json: {error}") from error
    if wire.bias != "none":
        raise AdapterRefused("adapter_config.json: bias is not none: biases are not served")
    if not 0 < wire.r <= MOST_RANK or not math.isfinite(wire.lora_alpha):
        raise AdapterRefused("adapter_config.json: r or lora_alpha is out of its range")
    return AdapterConfig(wire.r, wire.lora_alpha, wire.use_rslora)


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    for name in sorted(fields.keys() - _WITHOUT_EFFECT - _READ):
        if fields[name]:
            raise AdapterRefused(f"adapter_config.json: {name} is set, which is not served")
