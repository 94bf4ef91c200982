"""The served architectures and weight formats, by their names in config.json.

To add an architecture or a weight format, write one file and add an entry here
(`docs/how-to/add-a-model.md`). This module does not import torch, because commands that only make
plans also read configs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.models.architectures.architecture import Architecture
from engine.models.architectures.dense.gemma import GEMMA2, GEMMA3, GEMMA3_SEEING
from engine.models.architectures.dense.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from engine.models.architectures.dense.mimo import MIMO
from engine.models.architectures.dense.phi import PHI3
from engine.models.architectures.dense.plain import CWM, EXAONE4, OLMO2, OLMO3, SEED_OSS, SMOLLM3
from engine.models.architectures.hybrids.granite_hybrid import GRANITE_HYBRID
from engine.models.architectures.hybrids.nemotron_h import NEMOTRON_H
from engine.models.architectures.hybrids.qwen_hybrid import (
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_MOE_SEEING,
    QWEN3_5_SEEING,
    QWEN3_NEXT,
)
from engine.models.architectures.mixtures.deepseek import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4_MOE_LITE,
    MISTRAL4,
)
from engine.models.architectures.mixtures.gemma4 import (
    GEMMA4,
    GEMMA4_SEEING,
    GEMMA4_UNIFIED,
    GEMMA4_UNIFIED_SEEING,
)
from engine.models.architectures.mixtures.gpt_oss import GPT_OSS
from engine.models.architectures.mixtures.granite import GRANITE, GRANITE_MOE
from engine.models.architectures.mixtures.llama4 import LLAMA4, LLAMA4_SEEING
from engine.models.architectures.mixtures.mistral3 import MINISTRAL3, MISTRAL3
from engine.models.architectures.mixtures.mixture_model import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from engine.models.architectures.mixtures.sigmoid_scores import DOTS1, GLM4_MOE, MINIMAX_M2
from engine.models.modules import WeightFormat
from engine.models.weight_formats.fp8_checkpoints import ONLINE_FP8, read_float_quantized, read_fp8
from engine.models.weight_formats.int4_checkpoints import (
    PLANNED_INT4,
    read_awq,
    read_gptq,
    read_pack_quantized,
)
from engine.models.weight_formats.mxfp4 import MXFP4, read_mxfp4
from engine.models.weight_formats.plain import PLAIN
from engine.models.weight_formats.quantization_config import refuse_unless

ReadFormat = Callable[[dict[str, Any]], WeightFormat]


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The served architectures by their name in `architectures`, and formats by `quant_method`."""

    architectures: Mapping[str, Architecture]
    formats: Mapping[str, ReadFormat] = field(default_factory=dict)
    # One weight format of each kind, for which a model's memory can be planned.
    planned_formats: tuple[WeightFormat, ...] = (PLAIN,)


COMPRESSED_TENSORS: Mapping[str, ReadFormat] = {
    "float-quantized": read_float_quantized,
    "pack-quantized": read_pack_quantized,
}


def read_compressed_tensors(quantization: dict[str, Any]) -> WeightFormat:
    """Read the weight format for `quant_method` "compressed-tensors".

    Raises BadConfig, UnsupportedModel.
    """
    given = quantization.get("format")
    served = isinstance(given, str) and given in COMPRESSED_TENSORS
    refuse_unless(served, "format", given, " or ".join(COMPRESSED_TENSORS))
    return COMPRESSED_TENSORS[str(given)](quantization)


SERVED = ServedModels(
    {
        "CwmForCausalLM": CWM,
        "DeepseekV2ForCausalLM": DEEPSEEK_V2,
        "DeepseekV3ForCausalLM": DEEPSEEK_V3,
        "Dots1ForCausalLM": DOTS1,
        "Exaone4ForCausalLM": EXAONE4,
        "Gemma2ForCausalLM": GEMMA2,
        "Gemma3ForCausalLM": GEMMA3,
        "Gemma3ForConditionalGeneration": GEMMA3_SEEING,
        "Gemma4ForCausalLM": GEMMA4,
        "Gemma4ForConditionalGeneration": GEMMA4_SEEING,
        "Gemma4UnifiedForCausalLM": GEMMA4_UNIFIED,
        "Gemma4UnifiedForConditionalGeneration": GEMMA4_UNIFIED_SEEING,
        "Glm4MoeForCausalLM": GLM4_MOE,
        "Glm4MoeLiteForCausalLM": GLM4_MOE_LITE,
        "GptOssForCausalLM": GPT_OSS,
        "GraniteForCausalLM": GRANITE,
        "GraniteMoeForCausalLM": GRANITE_MOE,
        "GraniteMoeHybridForCausalLM": GRANITE_HYBRID,
        "Llama4ForCausalLM": LLAMA4,
        "Llama4ForConditionalGeneration": LLAMA4_SEEING,
        "LlamaForCausalLM": LLAMA,
        "MiMoForCausalLM": MIMO,
        "MiniMaxM2ForCausalLM": MINIMAX_M2,
        "Ministral3ForCausalLM": MINISTRAL3,
        "Mistral3ForConditionalGeneration": MISTRAL3,
        "Mistral4ForCausalLM": MISTRAL4,
        "MistralForCausalLM": MISTRAL,
        "MixtralForCausalLM": MIXTRAL,
        "NemotronHForCausalLM": NEMOTRON_H,
        "Olmo2ForCausalLM": OLMO2,
        "Olmo3ForCausalLM": OLMO3,
        "OlmoeForCausalLM": OLMOE,
        "Phi3ForCausalLM": PHI3,
        "Qwen2ForCausalLM": QWEN2,
        "Qwen2MoeForCausalLM": QWEN2_MOE,
        "Qwen3_5ForCausalLM": QWEN3_5,
        "Qwen3_5ForConditionalGeneration": QWEN3_5_SEEING,
        "Qwen3_5MoeForCausalLM": QWEN3_5_MOE,
        "Qwen3_5MoeForConditionalGeneration": QWEN3_5_MOE_SEEING,
        "Qwen3ForCausalLM": QWEN3,
        "Qwen3MoeForCausalLM": QWEN3_MOE,
        "Qwen3NextForCausalLM": QWEN3_NEXT,
        "SeedOssForCausalLM": SEED_OSS,
        "SmolLM3ForCausalLM": SMOLLM3,
    },
    {
        "awq": read_awq,
        "compressed-tensors": read_compressed_tensors,
        "fp8": read_fp8,
        "gptq": read_gptq,
        "mxfp4": read_mxfp4,
    },
    (PLAIN, ONLINE_FP8, PLANNED_INT4, MXFP4),
)
