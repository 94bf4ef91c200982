"""Which models are served: architectures and weight formats by their names in config.json.

An architecture is one file that is entered here, and so is a weight format
(`docs/how-to/add-a-model.md`). Reading configs takes no torch, since commands that only plan read
them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from engine.config import Quantization
from engine.models.config import ModelConfig, eos_token_ids, read_json
from engine.models.errors import UnsupportedModel
from engine.models.layers import LayerConfig
from engine.models.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from engine.models.mixtures import MIXTRAL, QWEN3_MOE
from engine.models.modules import WeightFormat
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8, read_float_quantized, read_fp8
from engine.models.weight_formats.plain import PLAIN


class Architecture(Protocol):
    """What a model of some name in `architectures` is."""

    def read(self, path: Path) -> ModelConfig:
        """The model of a config.json, with plain weights and no end-of-sequence tokens.

        Raises BadConfig for what is absent or malformed, UnsupportedModel for what is well formed
        but not served.
        """
        ...

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        """The sizes of its layers, to plan with: whether or not it is served; raises BadConfig."""
        ...


ReadFormat = Callable[[dict[str, Any]], WeightFormat]  # from quantization_config; raises ModelError


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Architectures by their names in `architectures`, formats by their `quant_method`."""

    architectures: Mapping[str, Architecture]
    formats: Mapping[str, ReadFormat] = field(default_factory=dict)


SERVED = ServedModels(
    {
        "LlamaForCausalLM": LLAMA,
        "MistralForCausalLM": MISTRAL,
        "MixtralForCausalLM": MIXTRAL,
        "Qwen2ForCausalLM": QWEN2,
        "Qwen3ForCausalLM": QWEN3,
        "Qwen3MoeForCausalLM": QWEN3_MOE,
    },
    {"compressed-tensors": read_float_quantized, "fp8": read_fp8},
)
ONLINE: Mapping[Quantization, WeightFormat] = {"none": PLAIN, "fp8": ONLINE_FP8}


class _Named(msgspec.Struct):
    architectures: list[str]
    quantization_config: dict[str, Any] | None = None


class _MayBeNamed(msgspec.Struct):
    architectures: list[str] = []


def read_model_config(
    model_dir: Path, served: ServedModels = SERVED, quantization: Quantization = "none"
) -> ModelConfig:
    """The model of a directory with config.json; raises as `Architecture.read`.

    Weights that are plain there are kept as `quantization` says.
    """
    path = model_dir / "config.json"
    named, known = read_json(path, _Named), served.architectures
    if len(named.architectures) != 1 or named.architectures[0] not in known:
        names = ", ".join(sorted(known))
        raise UnsupportedModel(f"architectures {named.architectures}: served are {names}")
    weight_format = _weight_format(named.quantization_config, served, quantization)
    model = known[named.architectures[0]].read(path)
    return replace(model, eos_token_ids=eos_token_ids(model_dir), weight_format=weight_format)


def planned_layers(path: Path, served: ServedModels = SERVED) -> tuple[LayerConfig, ...]:
    """The sizes of a config.json's layers; those of Llama for what is not served."""
    named = read_json(path, _MayBeNamed).architectures
    known = [served.architectures[name] for name in named if name in served.architectures]
    return (known[0] if known else LLAMA).layers(path)


def _weight_format(
    given: dict[str, Any] | None, served: ServedModels, quantization: Quantization
) -> WeightFormat:
    if given is None:
        return ONLINE[quantization]
    method = str(given.get("quant_method"))
    if quantization != "none":
        raise UnsupportedModel(
            f"quantization {quantization!r}: the checkpoint is quantised already, by {method!r}"
        )
    if method not in served.formats:
        names = ", ".join(sorted(served.formats)) or "none"
        raise UnsupportedModel(
            f"quantization_config: weights quantised by {method!r} are not served; served are "
            f"{names}"
        )
    return served.formats[method](given)
