"""Further templates of families, in tests marked `zoo`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.zoo.families import FAMILIES, family
from tests.zoo.family import Family
from tests.zoo.templates import LlamaCpp


def _like(name: str, other: str, source: str, **more: Any) -> Family:
    return replace(family(other), name=name, source=LlamaCpp(source), **more)


def _with_tools(name: str, source: str) -> Family:
    """A Hermes that has another template for chats with tools."""
    return replace(family("hermes3"), name=name, tool_use=LlamaCpp(source), tools="hermes")


MORE: tuple[Family, ...] = (
    _like("llama3.1-8b", "llama3.1", "meta-llama-Llama-3.1-8B-Instruct"),
    _like("llama3.2-3b", "llama3.2", "meta-llama-Llama-3.2-3B-Instruct"),
    _like("llama3.3", "llama3.1", "meta-llama-Llama-3.3-70B-Instruct"),
    _like("functionary-v3.1", "llama3.1", "meetkai-functionary-medium-v3.1", tools=None),
    _like("functionary-v3.2", "llama3.1", "meetkai-functionary-medium-v3.2", tools=None),
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
    _like("deepseek-v3.1-2", "deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1"),
)
# For parametrize: each family by its name, where `make test-zoo` adds those of MORE.
WITH_MORE = [
    *(pytest.param(one, id=one.name) for one in FAMILIES),
    *(pytest.param(one, id=one.name, marks=pytest.mark.zoo) for one in MORE),
]
