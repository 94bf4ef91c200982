"""The fields of config.json for fp8 weights, in the two forms that model checkpoints use.

    quant_method: compressed-tensors    format float-quantized, written by llm-compressor
    quant_method: fp8                   older files of vLLM; block scales of DeepSeek and Qwen

If the value of a field is not served, the error names the field.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.models.errors import UnsupportedModel
from engine.models.weight_formats.fp8 import BLOCK, Fp8Format, Inputs, Weights
from engine.models.weight_formats.ignored import Ignored, read_ignored
from engine.models.weight_formats.quantization_config import (
    FIELD,
    CompressedTensors,
    Numbers,
    converted,
    refuse_unless,
)

ONLINE_FP8 = Fp8Format("fp8", "channel", "token", Ignored(("lm_head",)), online=True)


class _Fp8(msgspec.Struct):
    quant_method: str
    activation_scheme: Literal["dynamic", "static"] = "dynamic"
    weight_block_size: list[int] | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None  # vLLM's name for the field above
    fmt: str = "e4m3"


E4M3 = ("e4m3", "float8_e4m3fn")  # the second is torch's name for the same dtype (MiniMax-M2)


def read_fp8(quantization: dict[str, Any]) -> Fp8Format:
    """Read the format for `quant_method` "fp8". Raises BadConfig, UnsupportedModel."""
    raw = converted(quantization, _Fp8)
    if raw.fmt not in E4M3:
        raise UnsupportedModel(f"{FIELD}.fmt {raw.fmt!r}: served is 'e4m3'")
    ignored = _plain_ones(raw)
    static = raw.activation_scheme == "static"
    if raw.weight_block_size is None:
        return Fp8Format(raw.quant_method, "channel", "static" if static else "token", ignored)
    if raw.weight_block_size != [BLOCK, BLOCK]:
        raise UnsupportedModel(
            f"{FIELD}.weight_block_size {raw.weight_block_size}: served is [{BLOCK}, {BLOCK}]"
        )
    if static:
        raise UnsupportedModel(
            f"{FIELD}.activation_scheme 'static': with weight_block_size served is 'dynamic'"
        )
    return Fp8Format(raw.quant_method, "block", "group", ignored, "weight_scale_inv")


def _plain_ones(raw: _Fp8) -> Ignored:
    if raw.modules_to_not_convert:
        return read_ignored("modules_to_not_convert", raw.modules_to_not_convert)
    return read_ignored("ignored_layers", raw.ignored_layers or ())


def read_float_quantized(quantization: dict[str, Any]) -> Fp8Format:
    """Read the format float-quantized of compressed-tensors. Raises BadConfig, UnsupportedModel."""
    raw = converted(quantization, CompressedTensors)
    group = raw.the_group("float-quantized")
    weights = _weights(group.weights)
    inputs = _inputs(group.input_activations, weights)
    return Fp8Format(raw.quant_method, weights, inputs, raw.ignored)


def _weights(raw: Numbers) -> Weights:
    refuse_unless(_is_e4m3(raw) and not raw.dynamic, "weights", _kind(raw), "static 8-bit floats")
    if raw.strategy == "block":
        structure = raw.block_structure
        refuse_unless(structure == [BLOCK] * 2, "weights.block_structure", structure, [BLOCK] * 2)
        return "block"
    served = ("channel", "tensor")
    refuse_unless(
        raw.strategy in served, "weights.strategy", raw.strategy, "channel, tensor, block"
    )
    return "channel"


def _inputs(raw: Numbers | None, weights: Weights) -> Inputs:
    if raw is None:
        raise UnsupportedModel(
            f"{FIELD}.input_activations: weights in fp8 with plain inputs are not served"
        )
    refuse_unless(_is_e4m3(raw), "input_activations", _kind(raw), "8-bit floats")
    if weights == "block":
        by_group = raw.strategy == "group" and raw.group_size == BLOCK and bool(raw.dynamic)
        refuse_unless(by_group, "input_activations", _kind(raw), f"dynamic, groups of {BLOCK}")
        return "group"
    if raw.dynamic:
        refuse_unless(raw.strategy == "token", "input_activations", _kind(raw), "dynamic by token")
        return "token"
    refuse_unless(raw.strategy == "tensor", "input_activations", _kind(raw), "static by tensor")
    return "static"


def _is_e4m3(raw: Numbers) -> bool:
    return raw.num_bits == 8 and raw.type == "float" and raw.symmetric


def _kind(raw: Numbers) -> str:
    how = "dynamic" if raw.dynamic else "static"
    return f"{how}, {raw.num_bits}-bit {raw.type}, by {raw.strategy}"
