"""The causal models of `transformers` 5.23 that are not served, and what each one needs.

The names are those in `architectures` of config.json. A model may need more than is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CAUSAL = {
    "latent attention": "AXK1 LongcatFlash MiniCPM3 Youtu",
    "sparse attention": "AXK2 DeepseekV32 DeepseekV4 Dots3Note GlmMoeDsa HYV4 MiniMaxM3VL Qwen4Exp",
    "recurrent layers of another kind": (
        "BailingHybrid Bamba FalconH1 FalconMamba Inkling Inkling2 Jamba"
        " KimiLinear Lfm2 Lfm2Moe Lfm3 Mamba Mamba2 MiniMax OlmoHybrid RecurrentGemma"
        " Rwkv Zamba Zamba2 Zaya xLSTM"
    ),
    "rope of neighbouring numbers": (
        "Cohere Cohere2 Cohere2Moe Ernie4_5 Ernie4_5_Moe Glm Glm4 Helium"
    ),
    "heads of two sizes, or KV that layers share": (
        "Gemma3n Gemma4Assistant Gemma4UnifiedAssistant MiMoV2Flash"
    ),
    "norms of heads after rope": "HunYuanDenseV1 HunYuanMoEV1",
    "attention with other gates": "Afmoe Beam HrmText Laguna",
    "attention of another kind": "BitNet Blt CpmAnt DiffLlama Doge JetMoe",
    "experts before a norm": "FlexOlmo Kolibri1",
    "norms of means, or MLPs without gates": (
        "Apertus Arcee BioGpt Bloom CodeGen Dbrx Falcon GPTBigCode GPTJ GPTNeo GPTNeoX"
        " GPTNeoXJapanese Jais2 ModernBertDecoder Mpt NanoChat Nemotron OPT Olmo Persimmon Phi"
        " Phimoe StableLm Starcoder2 XGLM"
    ),
    "an encoder, or attention to one": (
        "Bart BigBird BigBirdPegasus Blenderbot BlenderbotSmall Camembert Data2VecText Electra"
        " Ernie MBart Marian MegatronBert Moshi Musicgen MusicgenMelody Mvp PLBart Pegasus"
        " ProphetNet RemBert RoCBert RoFormer Roberta RobertaPreLayerNorm TrOCR Whisper XLMRoberta"
        " XLMRobertaXL Xmod"
    ),
    "another input than text": "AriaText CohereCompass Emu3 Fuyu Git Mllama Phi4Multimodal",
    "an entry alone, as far as is known": (
        "ExaoneMoe Flint Gemma GraniteMoeSWA GraniteMoeShared GraniteSWA HYV3 HyperCLOVAX Mellum"
        " Ministral SolarOpen VaultGemma"
    ),
}
_NAMED_OTHERWISE = {
    "heads of two sizes, or KV that layers share": ("Gemma3nForConditionalGeneration",),
    "norms of means, or MLPs without gates": (
        "CTRLLMHeadModel",
        "GPT2LMHeadModel",
        "OpenAIGPTLMHeadModel",
    ),
    "an encoder, or attention to one": (
        "BertGenerationDecoder",
        "BertLMHeadModel",
        "ReformerModelWithLMHead",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    ),
    "another input than text": (
        "GotOcr2ForConditionalGeneration",
        "MossTranscribeDiarizeForConditionalGeneration",
    ),
}
UNSERVED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        missing: (
            *(f"{name}ForCausalLM" for name in names.split()),
            *_NAMED_OTHERWISE.get(missing, ()),
        )
        for missing, names in _CAUSAL.items()
    }
)


def missing_for(architecture: str) -> str | None:
    """Return the feature that an architecture needs and that is missing here, or None."""
    return next((missing for missing, names in UNSERVED.items() if architecture in names), None)
