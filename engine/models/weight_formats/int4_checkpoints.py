"""The fields of config.json for int4 weights, in the three forms that model checkpoints use.

    quant_method: awq                   version gemm, written by AutoAWQ
    quant_method: gptq                  AutoGPTQ, GPTQModel; checkpoint_format gptq or gptq_v2
    quant_method: compressed-tensors    format pack-quantized, written by llm-compressor

If the value of a field is not served, the error names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from engine.models.errors import UnsupportedModel
from engine.models.weight_formats.ignored import PATTERN, Ignored, read_ignored
from engine.models.weight_formats.int4 import GROUPS, Int4Format
from engine.models.weight_formats.int4_forms import Form
from engine.models.weight_formats.quantization_config import (
    FIELD,
    CompressedTensors,
    Numbers,
    converted,
    refuse_unless,
)

_GROUPS = " or ".join(str(group) for group in GROUPS)
_FORMATS: Mapping[str, Form] = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
_EXCEPT = "-:"  # prefix of GPTQModel's patterns for unquantised matrices

# The format that plans assume for int4 weights.
PLANNED_INT4 = Int4Format("int4", "pack-quantized", 128, False, Ignored(("lm_head",)))


class _Awq(msgspec.Struct):
    quant_method: str
    bits: int
    group_size: int
    zero_point: bool = True
    version: str = "gemm"
    modules_to_not_convert: list[str] | None = None


def read_awq(quantization: dict[str, Any]) -> Int4Format:
    """Read the format for `quant_method` "awq". Raises BadConfig, UnsupportedModel."""
    raw = converted(quantization, _Awq)
    refuse_unless(raw.version.lower() == "gemm", "version", raw.version, "gemm")
    _check_sizes(raw.bits, raw.group_size)
    refuse_unless(raw.zero_point, "zero_point", raw.zero_point, True)
    listed = [name.rstrip(".") for name in raw.modules_to_not_convert or ()]
    ignored = read_ignored("modules_to_not_convert", listed)
    return Int4Format(raw.quant_method, "awq", raw.group_size, has_zeros=True, ignored=ignored)


class _Gptq(msgspec.Struct):
    quant_method: str
    bits: int
    group_size: int
    sym: bool = True
    desc_act: bool = False
    static_groups: bool = False
    checkpoint_format: str | None = None
    format: str | None = None  # newer name in GPTQModel
    is_marlin_format: bool = False
    lm_head: bool = False
    dynamic: dict[str, Any] | None = None
    modules_in_block_to_quantize: list[Any] | None = None


def read_gptq(quantization: dict[str, Any]) -> Int4Format:
    """Read the format for `quant_method` "gptq". Raises BadConfig, UnsupportedModel."""
    raw = converted(quantization, _Gptq)
    _check_sizes(raw.bits, raw.group_size)
    kind = raw.checkpoint_format or raw.format or "gptq"
    given = "marlin" if raw.is_marlin_format else kind
    refuse_unless(given in _FORMATS, "checkpoint_format", given, " or ".join(_FORMATS))
    in_order = not raw.desc_act or raw.static_groups
    refuse_unless(in_order, "desc_act", raw.desc_act, "false, or true with static_groups")
    refuse_unless(not raw.lm_head, "lm_head", raw.lm_head, "false, a plain output projection")
    listed = raw.modules_in_block_to_quantize
    refuse_unless(not listed, "modules_in_block_to_quantize", listed, "all matrices, and no list")
    ignored = read_ignored("dynamic", _plain_patterns(raw.dynamic or {}))
    return Int4Format(
        raw.quant_method, _FORMATS[given], raw.group_size, has_zeros=not raw.sym, ignored=ignored
    )


def _plain_patterns(dynamic: dict[str, Any]) -> Iterator[str]:
    for pattern in dynamic:
        only = f"patterns that begin with {_EXCEPT!r}, of matrices that are plain"
        refuse_unless(pattern.startswith(_EXCEPT), "dynamic", pattern, only)
        yield PATTERN + pattern.removeprefix(_EXCEPT)


def read_pack_quantized(quantization: dict[str, Any]) -> Int4Format:
    """Read the format pack-quantized of compressed-tensors. Raises BadConfig, UnsupportedModel."""
    raw = converted(quantization, CompressedTensors)
    group = raw.the_group("pack-quantized")
    if group.input_activations is not None:
        raise UnsupportedModel(
            f"{FIELD}.input_activations: with weights in int4 served are plain inputs, null"
        )
    size = _group_size(group.weights)
    return Int4Format(
        raw.quant_method,
        "pack-quantized",
        size,
        has_zeros=not group.weights.symmetric,
        ignored=raw.ignored,
    )


def _group_size(raw: Numbers) -> int:
    kind = f"{raw.num_bits}-bit {raw.type}"
    refuse_unless(raw.num_bits == 4 and raw.type == "int", "weights", kind, "4-bit int")
    refuse_unless(not raw.dynamic, "weights.dynamic", raw.dynamic, False)
    refuse_unless(raw.strategy == "group", "weights.strategy", raw.strategy, "group")
    size = raw.group_size or 0
    refuse_unless(size in GROUPS, "weights.group_size", size, _GROUPS)
    # The columns of a group must be neighbours. The values "weight" and "static" only say in which
    # order columns were quantised.
    in_order = raw.actorder in (None, False, "weight", "static")
    refuse_unless(in_order, "weights.actorder", raw.actorder, "null, weight or static")
    return size


def _check_sizes(bits: int, group_size: int) -> None:
    refuse_unless(bits == 4, "bits", bits, 4)
    refuse_unless(group_size in GROUPS, "group_size", group_size, _GROUPS)
