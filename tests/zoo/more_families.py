"""More templates of families, for tests marked `zoo`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.turn_formats.families.named.gemma import FunctionGemmaFormat
from gateway.turn_formats.families.named.kimi import KimiK2Format
from gateway.turn_formats.families.named.solar import SolarOpenFormat
from gateway.turn_formats.families.objects.cohere import CohereFormat
from gateway.turn_formats.families.objects.object_lists import ApertusFormat, InternLm2Format
from gateway.turn_formats.families.tagged.elements import MiniMaxM3Format
from gateway.turn_formats.families.tagged.muse import MuseFormat
from gateway.turn_formats.families.tagged.tagged_families import Hy3Format, MiniMaxM2Format
from tests.zoo.families import FAMILIES, family
from tests.zoo.family import Family
from tests.zoo.templates import LlamaCpp, Ollama, Trl, Vllm

_ELSEWHERE = {"is_own": False, "is_served": False}
_COMMAND = (
    *("<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
    *CohereFormat.markers,
)
_MINIMAX = ("]~!b[", "]~b]")


_HY3 = {
    "ends": ("<\uff5chy_eos:opensource\uff5c>",),
    "special": (*Hy3Format.markers, "<think:opensource>", "</think:opensource>"),
}
_MINIMAX_M3 = {
    "ends": ("[e~[",),
    "special": (*_MINIMAX, MiniMaxM3Format.markers[0]),
    "plain": ("<mm:think>", "</mm:think>"),
}
_KIMI_K3 = {"ends": ("<|end_of_msg|>",), "special": ("<|open|>", "<|close|>", "<|sep|>")}
_SOLAR = {
    "ends": ("<|flush|>", "<|calls|>"),
    "special": (*SolarOpenFormat.markers, "<|think|>"),
}
_MUSE = {
    "ends": ("<|eot|>",),
    "special": MuseFormat.tags.tokens,
    "reasons": True,
}
_COMMAND_R = "CohereForAI-c4ai-command-r-plus-tool_use"
_COMMAND_OLD = {"ends": ("<|END_OF_TURN_TOKEN|>",), "special": _COMMAND[:4], "bos": "<BOS_TOKEN>"}
_NEMOTRON_MINI: dict[str, Any] = {
    "ends": ("<extra_id_1>",),
    "special": ("<extra_id_0>",),
    "source": Ollama("nemotron-mini:4b"),
    "tools": "nemotron_mini",
    **_ELSEWHERE,
}
_APRIEL = {"ends": ("<|end|>",), "reasons": True}
_GRANITE = {"ends": ("<|end_of_text|>",), "special": ("<|tool_call|>",)}
_GRANITE4 = {**_GRANITE, "special": ("<|start_of_role|>", "<|end_of_role|>")}
_NEMOTRON = {"ends": ("<SPECIAL_12>",), "special": ("<SPECIAL_10>", "<SPECIAL_11>")}
_APERTUS = (*ApertusFormat.markers, "<|assistant_start|>", "<|assistant_end|>")
_GIGACHAT31 = {
    "ends": ("<|message_sep|>",),
    "special": ("<|role_sep|>", "<|function_call|>"),
}
_GIGACHAT3 = {
    "special": ("<|message_sep|>", "<|role_sep|>", "<|function_call|>"),
    "reasons": False,
}

_LAGUNA = {"ends": ("</assistant>",)}
_LLAMA4: dict[str, Any] = {
    "ends": ("<|eot|>", "<|end_of_text|>"),
    "special": ("<|header_start|>", "<|header_end|>", "<|python_start|>", "<|python_end|>"),
    "is_own": False,
}

_INTERNLM = {"special": InternLm2Format.markers, **_ELSEWHERE}
_FUNCTION_GEMMA = FunctionGemmaFormat.markers


def _like(name: str, other: str, source: str | Trl | Vllm, **more: Any) -> Family:
    named = LlamaCpp(source) if isinstance(source, str) else source
    return replace(family(other), name=name, source=named, **more)


def _other(name: str, other: str, source: str, tools: str, **more: Any) -> Family:
    """Make a family that is not served, with another family's tokenizer."""
    return _like(name, other, source, **{"tools": tools, **_ELSEWHERE, **more})


def _dsml(name: str, source: str, tools: str) -> Family:
    return _other(name, "deepseek-v3.1", source, tools, plain=("\uff5cDSML\uff5c",))


def _kimi(name: str, source: str, **more: Any) -> Family:
    marks = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
    calls = KimiK2Format.markers
    fields = {"tools": "kimi_k2", "special": (*marks, *calls), **_ELSEWHERE, **more}
    return _like(name, "deepseek-v3", source, ends=("<|im_end|>", "[EOS]"), bos="[BOS]", **fields)


def _command(name: str, source: str) -> Family:
    fields = {"tools": "cohere", "special": _COMMAND, "bos": "<BOS_TOKEN>", **_ELSEWHERE}
    return _like(name, "llama3.1", source, ends=("<|END_OF_TURN_TOKEN|>",), reasons=True, **fields)


def _with_tools(name: str, source: str) -> Family:
    """Make a Hermes family with a separate template for chats with tools."""
    return replace(family("hermes3"), name=name, tool_use=LlamaCpp(source), tools="hermes")


def _vllm(other: str, *sources: str, **more: Any) -> tuple[Family, ...]:
    """Make families like `other`, with vLLM's templates for them."""
    return tuple(_like(f"vllm-{one}", other, Vllm(one), **more) for one in sources)


MORE: tuple[Family, ...] = (
    _like("llama3.1-8b", "llama3.1", "meta-llama-Llama-3.1-8B-Instruct"),
    _like("llama3.2-3b", "llama3.2", "meta-llama-Llama-3.2-3B-Instruct"),
    replace(family("llama3.2"), name="llama4", source=Ollama("llama4:latest"), **_LLAMA4),
    _like("llama3.3", "llama3.1", "meta-llama-Llama-3.3-70B-Instruct"),
    _like(
        "functionary-v3.1",
        "llama3.1",
        "meetkai-functionary-medium-v3.1",
        tools="functionary_v31",
    ),
    _like(
        "functionary-v3.2",
        "llama3.1",
        "meetkai-functionary-medium-v3.2",
        tools="functionary_v32",
    ),
    _other("muse-glimmer", "llama3.1", "muse-glimmer", "muse", **_MUSE),
    _other("command-r+", "llama3.1", _COMMAND_R, "command_r", **_COMMAND_OLD),
    replace(family("qwen2.5"), name="nemotron-mini", **_NEMOTRON_MINI),
    _with_tools("hermes2-pro", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"),
    _with_tools("hermes3-tools", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
    _like("r1-distill-llama-8b", "r1-distill-llama", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
    _like("r1-distill-qwen-32b", "r1-distill-qwen", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
    _like("r1-llama-cpp", "r1-distill-qwen", "llama-cpp-deepseek-r1"),
    _like("bielik", "qwq", "Bielik-11B-v3.0-Instruct", model_type="llama", is_own=False),
    _like("mimo-vl", "qwen2.5", "MiMo-VL"),
    _like("qwen2.5-7b", "qwen2.5", "Qwen-Qwen2.5-7B-Instruct"),
    _like("qwen3-0.6b", "qwen3", "Qwen-Qwen3-0.6B"),
    _like("qwen3-coder-2", "qwen3-coder", "Qwen3-Coder"),
    _like("qwen3.5-4b", "qwen3.5", "Qwen3.5-4B"),
    _like("qwq-32b", "qwq", "Qwen-QwQ-32B"),
    _like("nemo", "mistral-nemo", "mistralai-Mistral-Nemo-Instruct-2407"),
    _like("mistral-small-3.2", "mistral-v11", "Mistral-Small-3.2-24B-Instruct-2506"),
    _like("devstral-2507", "mistral-v11", "unsloth-mistral-Devstral-Small-2507"),
    _like("ministral-3", "mistral-v13-thinks", "mistralai-Ministral-3-14B-Reasoning-2512"),
    _like("gemma2-2b", "gemma2", "google-gemma-2-2b-it"),
    _like("gemma4-31b", "gemma4_v5", "google-gemma-4-31B-it"),
    _like("gemma4-31b-interleaved", "gemma4_v5", "google-gemma-4-31B-it-interleaved"),
    _like("phi3.5-mini", "phi3.5", "microsoft-Phi-3.5-mini-instruct"),
    _like("gpt-oss-120b", "gpt-oss", "openai-gpt-oss-120b"),
    replace(_other("glm4", "glm4.5", "", "glm4", reasons=False), source=Ollama("glm4:9b")),
    _like("glm4.6", "glm4.5", "GLM-4.6"),
    _like("glm4.7-flash", "glm4.5", "GLM-4.7-Flash", tools="glm47"),
    _kimi("kimi-k2", "moonshotai-Kimi-K2", reasons=False),
    _kimi("kimi-k2-instruct", "Kimi-K2-Instruct", reasons=False),
    _kimi("kimi-k2-thinking", "Kimi-K2-Thinking", plain=("<think>", "</think>")),
    _like(
        "minimax-m2",
        "qwen3",
        "MiniMax-M2",
        tools="minimax_m2",
        ends=("[e~[",),
        special=_MINIMAX,
        plain=MiniMaxM2Format.markers[:1] + MiniMaxM2Format.markers[-1:],
        **_ELSEWHERE,
    ),
    _like(
        "seed-oss",
        "qwen3",
        "ByteDance-Seed-OSS",
        tools="seed_oss",
        ends=("<seed:eos>",),
        special=("<seed:bos>", "<seed:think>", "</seed:think>"),
        plain=("<seed:tool_call>", "</seed:tool_call>"),
        **_ELSEWHERE,
    ),
    _command("command-r7b", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"),
    _command("command-a+", "Cohere2MoE"),
    _dsml("deepseek-v3.2", "deepseek-ai-DeepSeek-V3.2", "deepseek_v32"),
    _dsml("deepseek-v4", "deepseek-ai-DeepSeek-V4", "deepseek_v4"),
    _dsml("deepseek-v4-flash", "deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek_v4"),
    _other("kimi-k3", "deepseek-v3", "Kimi-K3", "kimi_k3", **_KIMI_K3),
    _other("solar-open", "qwen3", "upstage-Solar-Open-100B", "solar_open", **_SOLAR),
    _other("hy3", "qwen3", "tencent-Hy3", "hy3", **_HY3),
    _other("minicpm5", "qwen3", "openbmb-MiniCPM5-1B", "minicpm5"),
    _other("minimax-m1", "qwen2.5", "MiniMax-M1", "minimax_m1", ends=("<end_of_sentence>",)),
    _other("minimax-m3", "qwen3", "MiniMax-M3", "minimax_m3", **_MINIMAX_M3),
    _other("nemotron-nano-2", "qwen3", "NVIDIA-Nemotron-Nano-v2", "nemotron_nano2", **_NEMOTRON),
    _like("nemotron-3", "qwen3.5", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", **_ELSEWHERE),
    _like("nemotron-3-super", "qwen3.5", Trl("nemotron_3_super"), **_ELSEWHERE),
    _other("apertus", "mistral-nemo", "Apertus-8B-Instruct", "apertus", special=_APERTUS),
    _other("apriel-1.5", "mistral-nemo", "unsloth-Apriel-1.5", "apriel", **_APRIEL),
    _other("apriel-1.6", "mistral-nemo", "Apriel-1.6-15b-Thinker-fixed", "apriel", **_APRIEL),
    _other("gigachat3", "qwen3", "GigaChat3-10B-A1.8B", "gigachat3", **_GIGACHAT3),
    _other("gigachat3.1", "qwen2.5", "GigaChat3.1-10B-A1.8B", "gigachat31", **_GIGACHAT31),
    _other("granite3.3", "qwq", "ibm-granite-granite-3.3-2B-Instruct", "granite", **_GRANITE),
    _other("granite4", "qwen2.5", "ibm-granite-granite-4.0", "hermes", **_GRANITE4),
    _other("granite4.1", "qwen2.5", "ibm-granite-granite-4.1", "hermes", **_GRANITE4),
    _other("laguna-xs.2", "glm4.5", "poolside-Laguna-XS.2", "glm45", **_LAGUNA),
    _other("laguna-xs-2.1", "glm4.5", "poolside-Laguna-XS-2.1", "glm45", **_LAGUNA),
    _other("laguna-s-2.1", "glm4.5", "poolside-Laguna-S-2.1", "glm47", **_LAGUNA),
    _other("ling-3-flash", "glm4.5", "inclusionai-ling-3.0-flash", "glm45", ends=("<|role_end|>",)),
    _other("spark2.5", "glm4.5", "Spark2.5", "glm47", ends=family("deepseek-v3").ends),
    _other("step3.5-flash", "qwen3-coder", "StepFun3.5-Flash", "qwen3_coder", reasons=True),
    _other("reka-edge", "qwen3", "Reka-Edge", "hermes", ends=("<sep>",)),
    _like("lfm2-8b-a1b", "lfm2", "LFM2-8B-A1B"),
    _like("lfm2.5-8b-a1b", "lfm2.5", "LFM2.5-8B-A1B"),
    _like("lfm2.5-1.2b", "lfm2.5", "LFM2.5-Instruct"),
    _like("deepseek-v3.1-2", "deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1"),
    *_vllm("qwen2.5", "hermes"),
    *_vllm("qwen2.5", "internlm2_tool", tools="internlm2", **_INTERNLM),
    *_vllm("qwen2.5", "hunyuan_a13b", tools="apriel", reasons=True, **_ELSEWHERE),
    *_vllm("qwen2.5", "xlam_qwen", tools="llama3_json"),
    *_vllm("glm4.5", "glm4", reasons=False),
    *_vllm("llama3.1", "muse_glimmer", tools="muse", **_MUSE, **_ELSEWHERE),
    *_vllm("qwen3-coder", "qwen3coder"),
    *_vllm("llama3.1", "llama3.1_json", "llama3.2_json", "llama4_json", "xlam_llama"),
    *_vllm("llama3.1", "llama3.2_pythonic", "toolace", "llama4_pythonic", tools="pythonic"),
    *_vllm("mistral-nemo", "mistral", "mistral3", "mistral_parallel"),
    *_vllm("gemma3", "gemma3_pythonic", tools="pythonic"),
    *_vllm("gemma3", "functiongemma", tools="functiongemma", special=_FUNCTION_GEMMA),
    *_vllm("gemma4", "gemma4"),
    *_vllm("phi4", "phi4_mini", tools="functools", ends=("<|end|>", "<|endoftext|>")),
    *_vllm("qwen2.5", "granite", tools="granite", **_GRANITE),
    *_vllm("qwen2.5", "granite_20b_fc", tools="granite_20b", ends=("<|endoftext|>",)),
    *_vllm("mistral-nemo", "apertus", tools="apertus", special=_APERTUS, **_ELSEWHERE),
    *_vllm("deepseek-v3", "deepseekv3", reasons=False),
    *_vllm("deepseek-v3", "deepseekr1"),
    *_vllm("deepseek-v3.1", "deepseekv31"),
)
# For `parametrize`: each family by its name; `make test-zoo` also runs MORE.
WITH_MORE = [
    *(pytest.param(one, id=one.name) for one in FAMILIES),
    *(pytest.param(one, id=one.name, marks=pytest.mark.zoo) for one in MORE),
]
