"""The reading of config.json by the architecture and the weight format that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from engine.config import Quantization
from engine.models.architectures.architecture import Architecture
from engine.models.architectures.dense.llama import LLAMA
from engine.models.config import ModelConfig, ModelSizes, read_json
from engine.models.eos import eos_token_ids
from engine.models.errors import ModelError, UnsupportedModel
from engine.models.layers.draft_head import DraftHeadConfig
from engine.models.layers.layer import LayerConfig
from engine.models.layers.mixture import MixtureConfig
from engine.models.modules import WeightFormat
from engine.models.names import CheckpointNames
from engine.models.served.registry import SERVED, ServedModels
from engine.models.served.unserved import missing_for
from engine.models.weight_formats.fp8 import Fp8Format
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8
from engine.models.weight_formats.int4 import Int4Format
from engine.models.weight_formats.mxfp4 import Mxfp4Format
from engine.models.weight_formats.plain import PLAIN, PlainFormat

# Files that may describe quantised weights instead of config.json, and the tool that writes each.
QUANTISED_BESIDE: Mapping[str, str] = {
    "hf_quant_config.json": "ModelOpt",
    "quantize_config.json": "AutoGPTQ, older than quantization_config",
    "quant_config.json": "AutoAWQ, older than quantization_config",
}
ONLINE: Mapping[Quantization, WeightFormat] = {"none": PLAIN, "fp8": ONLINE_FP8}


class _Quantised(msgspec.Struct, kw_only=True):
    quantization_config: dict[str, Any] | None = None
    compression_config: dict[str, Any] | None = None
    quantization: Any = None  # the field that MLX writes

    @property
    def quantised(self) -> dict[str, Any] | None:
        return self.quantization_config or self.compression_config


class _Beside(msgspec.Struct):
    """The fields of a `QUANTISED_BESIDE` file that describe weights.

    transformers.js writes files of these names without these fields.
    """

    quantization: Any = None
    bits: Any = None
    w_bit: Any = None

    @property
    def is_of_weights(self) -> bool:
        return any(said is not None for said in (self.quantization, self.bits, self.w_bit))


class _Named(_Quantised):
    architectures: list[str]


class _MayBeNamed(_Quantised):
    architectures: list[str] = []


def read_model_config(
    model_dir: Path, served: ServedModels = SERVED, quantization: Quantization = "none"
) -> ModelConfig:
    """Read the config of the model in a directory.

    Weights that are unquantised in the files are to be quantised as `quantization` says. Raises the
    errors of `Architecture.read`.
    """
    path = model_dir / "config.json"
    named, known = read_json(path, _Named), served.architectures
    if len(named.architectures) != 1 or named.architectures[0] not in known:
        names, unserved = ", ".join(sorted(known)), map(missing_for, named.architectures)
        needs = "".join(f"; it needs {missing}" for missing in unserved if missing is not None)
        raise UnsupportedModel(f"architectures {named.architectures}: served are {names}{needs}")
    weight_format = _weight_format(named, served, quantization)
    if named.quantised is None:
        _refuse_quantised_beside(model_dir, served)
    model = known[named.architectures[0]].read(path)
    weight_format = _with_names(weight_format, model.names)
    check_format(weight_format, model.layers)
    eos = eos_token_ids(model_dir, model.vocab_size)
    return replace(model, eos_token_ids=eos, weight_format=weight_format)


def _with_names(weight_format: WeightFormat, names: CheckpointNames) -> WeightFormat:
    if not isinstance(weight_format, Fp8Format | Int4Format) or not weight_format.ignored.names:
        return weight_format
    ignored = replace(weight_format.ignored, prefixes=names.prefixes)
    return replace(weight_format, ignored=ignored)


def _refuse_quantised_beside(model_dir: Path, served: ServedModels) -> None:
    for name, maker in QUANTISED_BESIDE.items():
        path = model_dir / name
        if path.exists() and read_json(path, _Beside).is_of_weights:
            raise UnsupportedModel(f"{name}: weights quantised by {maker}; {_served(served)}")


def check_format(weight_format: WeightFormat, layers: Sequence[LayerConfig]) -> None:
    """Raise UnsupportedModel if a layer is not served in this weight format."""
    mixtures = [layer.mlp for layer in layers if isinstance(layer.mlp, MixtureConfig)]
    packed = any(mixture.packed for mixture in mixtures)
    if packed and not isinstance(weight_format, PlainFormat | Mxfp4Format):
        raise UnsupportedModel(
            f"quantization {weight_format.name!r}: experts that are one tensor in the files are "
            "served in plain weights and mxfp4"
        )
    in_turn = any(mixture.packed and not mixture.halves for mixture in mixtures)
    if isinstance(weight_format, Mxfp4Format) and not in_turn:
        raise UnsupportedModel(
            "quantization_config: quant_method 'mxfp4' is served of experts that are one tensor "
            "in the files, as gpt-oss has them"
        )


def planned_format(path: Path) -> WeightFormat:
    """Return the weight format in a config.json, or `PLAIN` if the format is not served."""
    try:
        return _weight_format(read_json(path, _MayBeNamed), SERVED)
    except UnsupportedModel:
        return PLAIN


def planned_sizes(path: Path) -> ModelSizes:
    """Return the sizes in a config.json. An unserved architecture is read as Llama."""
    return _planned(path, SERVED).sizes(path)


def planned_layers(path: Path, served: ServedModels = SERVED) -> tuple[LayerConfig, ...]:
    """Return the layers in a config.json. An unserved architecture is read as Llama."""
    return _planned(path, served).layers(path)


def planned_head(path: Path) -> DraftHeadConfig | None:
    """Return the draft head in a model's config, or None without one.

    The weight files may lack the head. Returns None also for a model that is not served.
    """
    try:
        return _planned(path, SERVED).read(path).possible_head
    except ModelError:
        return None


def _planned(path: Path, served: ServedModels) -> Architecture:
    named = read_json(path, _MayBeNamed).architectures
    known = [served.architectures[name] for name in named if name in served.architectures]
    return known[0] if known else LLAMA


def _weight_format(
    named: _Quantised, served: ServedModels, quantization: Quantization = "none"
) -> WeightFormat:
    given = named.quantised
    if given is None and named.quantization is None:
        return ONLINE[quantization]
    if given is None or (named.quantization is not None and "quant_method" not in given):
        raise UnsupportedModel(f"quantization: weights quantised by MLX; {_served(served)}")
    method = str(given.get("quant_method"))
    if quantization != "none":
        raise UnsupportedModel(
            f"quantization {quantization!r}: the checkpoint is quantised already, by {method!r}"
        )
    if method not in served.formats:
        raise UnsupportedModel(f"quantization_config: quant_method {method!r}; {_served(served)}")
    return served.formats[method](given)


def _served(served: ServedModels) -> str:
    return f"served are {', '.join(('plain weights', *sorted(served.formats)))}"
