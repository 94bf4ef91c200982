"""Checkpoints of compressed-tensors: which reader takes which `format` of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.models.modules import WeightFormat
from engine.models.weight_formats.fp8_checkpoints import read_float_quantized
from engine.models.weight_formats.int4_checkpoints import read_pack_quantized
from engine.models.weight_formats.quantization_config import refuse_unless

READERS: Mapping[str, Callable[[dict[str, Any]], WeightFormat]] = {
    "float-quantized": read_float_quantized,
    "pack-quantized": read_pack_quantized,
}


def read_compressed_tensors(quantization: dict[str, Any]) -> WeightFormat:
    """Of `quant_method` compressed-tensors; raises BadConfig, UnsupportedModel."""
    given = quantization.get("format")
    refuse_unless(given in READERS, "format", given, " or ".join(READERS))
    return READERS[str(given)](quantization)
