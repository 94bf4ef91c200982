"""All families of the zoo."""

from __future__ import annotations

from tests.zoo import sources
from tests.zoo.family import Family
from tests.zoo.mistral_templates import MistralCommon
from tests.zoo.templates import Configured, Ollama, Trl
from tests.zoo.tokenizers import ShippedTokenizer

QWEN2_5 = ShippedTokenizer(sources.QWEN2_5)
QWEN3 = ShippedTokenizer(sources.QWEN3)
MISTRAL_7B = ShippedTokenizer(sources.MISTRAL_7B)
LLAMA3 = ShippedTokenizer(sources.LLAMA3)
GEMMA3 = ShippedTokenizer(sources.GEMMA3)
NEMO = ShippedTokenizer(sources.NEMO)
GPT_OSS = ShippedTokenizer(sources.GPT_OSS)
DEEPSEEK_V3 = ShippedTokenizer(sources.DEEPSEEK_V3)
DEEPSEEK_V4 = ShippedTokenizer(sources.DEEPSEEK)
TOKENIZERS = {
    "qwen2.5": QWEN2_5,
    "qwen3": QWEN3,
    "mistral-7b": MISTRAL_7B,
    "llama3": LLAMA3,
    "gemma3": GEMMA3,
    "mistral-nemo": NEMO,
    "gpt-oss": GPT_OSS,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v4": DEEPSEEK_V4,
}


def _deepseek_mark(name: str) -> str:
    return f"<\N{FULLWIDTH VERTICAL LINE}{name}\N{FULLWIDTH VERTICAL LINE}>"


_CHATML = ("<|im_end|>", "<|endoftext|>")
_LLAMA3_ENDS = ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")
_DEEPSEEK_BOS = _deepseek_mark("begin▁of▁sentence")
_DEEPSEEK_END = (_deepseek_mark("end▁of▁sentence"),)
_CALL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_THINK_TAGS = ("<think>", "</think>")
_DEEPSEEK_MARKS = tuple(
    _deepseek_mark(name)
    for name in (
        "User",
        "Assistant",
        "tool▁calls▁begin",
        "tool▁calls▁end",
        "tool▁call▁begin",
        "tool▁call▁end",
        "tool▁outputs▁begin",
        "tool▁outputs▁end",
        "tool▁output▁begin",
        "tool▁output▁end",
        "tool▁sep",
    )
)
_TEKKEN_MARKS = (
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]"),
    *("[THINK]", "[/THINK]", "[IMG]"),
)
_GEMMA4_MARKS = (
    *("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>"),
    *("<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>"),
)
_GLM_MARKS = (*("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),)
_GLM_TAGS = (*_CALL_TAGS, *_THINK_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_ENDS = ("<|user|>", "<|endoftext|>", "<|observation|>")
_LFM2_MARKS = (
    *("<|im_start|>", "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>"),
    *("<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>"),
)


def _qwen(name: str, source: Trl | Ollama, **more: object) -> Family:
    fields = {"tokenizer": QWEN3, "ends": _CHATML, "model_type": "qwen3", **more}
    return Family(name, source, **fields)  # type: ignore[arg-type]


def _llama(name: str, source: Trl | Ollama, **more: object) -> Family:
    fields = {"tokenizer": LLAMA3, "ends": _LLAMA3_ENDS, "bos": "<|begin_of_text|>", **more}
    return Family(name, source, **fields)  # type: ignore[arg-type]


def _mistral(name: str, source: Configured | MistralCommon | Ollama, **more: object) -> Family:
    fields = {"tokenizer": NEMO, "ends": ("</s>",), "bos": "<s>", "model_type": "mistral", **more}
    return Family(name, source, **fields)  # type: ignore[arg-type]


def _gemma(name: str, source: Trl | Ollama, **more: object) -> Family:
    fields = {"tokenizer": GEMMA3, "ends": ("<end_of_turn>", "<eos>"), "bos": "<bos>", **more}
    return Family(name, source, **fields)  # type: ignore[arg-type]


def _phi(name: str, source: Trl | Ollama, **more: object) -> Family:
    marks, ends = ("<|assistant|>", "<|system|>", "<|user|>"), ("<|end|>", "<|endoftext|>")
    fields = {"tokenizer": MISTRAL_7B, "ends": ends, "special": marks, "is_own": False, **more}
    return Family(name, source, **{"model_type": "phi3", **fields})  # type: ignore[arg-type]


def _distill(name: str, tokenizer: ShippedTokenizer, model_type: str) -> Family:
    return Family(
        name,
        Trl("deepseek_r1_distill"),
        tokenizer,
        _DEEPSEEK_END,
        bos=_DEEPSEEK_BOS,
        tools="deepseek_v3",
        reasons=True,
        model_type=model_type,
        special=(_DEEPSEEK_BOS,),
        plain=(*_DEEPSEEK_MARKS, *_THINK_TAGS),
    )


def _deepseek(name: str, source: Trl | Ollama, tools: str, tokenizer: ShippedTokenizer) -> Family:
    return Family(
        name,
        source,
        tokenizer,
        _DEEPSEEK_END,
        bos=_DEEPSEEK_BOS,
        tools=tools,
        reasons=True,
        is_served=False,
    )


def _lfm2(name: str, source: Trl, **more: object) -> Family:
    fields = {"tokenizer": LLAMA3, "ends": ("<|im_end|>",), "bos": "<|startoftext|>", **more}
    fields |= {"tools": "lfm2", "special": _LFM2_MARKS, "is_own": False, "is_served": False}
    return Family(name, source, **fields)  # type: ignore[arg-type]


_LLAMA2 = {"tokenizer": MISTRAL_7B, "ends": ("</s>",), "bos": "<s>", "is_own": False}
_OPENCHAT = {**_LLAMA2, "ends": ("<|end_of_turn|>",), "is_own": True}
_HERMES = {"special": ("<|im_start|>",), "plain": _CALL_TAGS, "ends": ("<|im_end|>",)}
FAMILIES: tuple[Family, ...] = (
    _qwen("qwen2", Ollama("qwen2:0.5b"), tokenizer=QWEN2_5, model_type="qwen2"),
    _qwen("qwen2.5", Trl("qwen2_5"), tokenizer=QWEN2_5, model_type="qwen2", tools="hermes"),
    _qwen(
        "qwen2.5-coder",
        Ollama("qwen2.5-coder:1.5b"),
        tokenizer=QWEN2_5,
        model_type="qwen2",
        tools="hermes",
    ),
    _qwen(
        "qwq",
        Ollama("qwq:32b"),
        tokenizer=QWEN2_5,
        model_type="qwen2",
        tools="hermes",
        reasons=True,
        plain=_THINK_TAGS,
    ),
    _qwen("marco-o1", Ollama("marco-o1:7b"), tokenizer=QWEN2_5, model_type="qwen2"),
    _qwen("qwen3", Trl("qwen3"), tools="hermes", reasons=True),
    _qwen("qwen3-2507", Trl("qwen3_instruct_2507"), tools="hermes", model_type="qwen3_moe"),
    _qwen("qwen3-coder", Ollama("qwen3-coder:30b"), tools="qwen3_coder", model_type="qwen3_moe"),
    _qwen("qwen3-next", Ollama("qwen3-next:80b"), tools="hermes", reasons=True, is_served=False),
    _qwen("qwen3-vl", Trl("qwen3_vl"), tools="hermes", is_served=False),
    _qwen("qwen3.5", Trl("qwen3_5_think"), tools="qwen3_coder", reasons=True, is_served=False),
    _qwen(
        "qwen3.5-nothink",
        Trl("qwen3_5_nothink"),
        tools="qwen3_coder",
        reasons=True,
        is_served=False,
    ),
    _qwen("qwen3.6", Trl("qwen3_6"), tools="qwen3_coder", reasons=True, is_served=False),
    _qwen("qwen3.8", Trl("qwen3_8"), tools="qwen3_coder", reasons=True, is_served=False),
    _llama("llama3", Trl("llama3")),
    _llama("llama3.1", Trl("llama3_1"), tools="llama3_json", special=("<|python_tag|>",)),
    _llama("llama3.2", Trl("llama3_2"), tools="llama3_json", special=("<|python_tag|>",)),
    _llama(
        "nemotron-70b", Ollama("nemotron:70b"), tools="llama3_json", special=("<|python_tag|>",)
    ),
    _llama("cogito", Ollama("cogito:3b"), tools="llama3_json", special=("<|python_tag|>",)),
    _llama("hermes3", Ollama("hermes3:70b"), **_HERMES),
    _llama("dolphin-llama3", Ollama("dolphin-llama3:8b"), ends=("<|im_end|>",)),
    _llama("tulu3", Ollama("tulu3:70b"), ends=("<|end_of_text|>",)),
    _llama("rnj-1", Ollama("rnj-1:latest"), tools="hermes", plain=_CALL_TAGS, is_served=False),
    _llama("llama2", Ollama("llama2:7b"), **_LLAMA2),
    _llama("tinyllama", Ollama("tinyllama:1.1b"), **_LLAMA2),
    _llama("openchat", Ollama("openchat:7b"), **_OPENCHAT),
    _llama("yi", Ollama("yi:6b"), tokenizer=MISTRAL_7B, ends=_CHATML, bos="<s>", is_own=False),
    _llama(
        "deepseek-coder",
        Ollama("deepseek-coder:1.3b"),
        tokenizer=DEEPSEEK_V3,
        ends=("<|EOT|>",),
        bos=_DEEPSEEK_BOS,
        is_own=False,
    ),
    _llama(
        "smollm2",
        Ollama("smollm2:135m"),
        tokenizer=QWEN2_5,
        ends=_CHATML,
        bos="<|im_start|>",
        is_own=False,
    ),
    _distill("r1-distill-llama", LLAMA3, "llama"),
    _distill("r1-distill-qwen", QWEN2_5, "qwen2"),
    _mistral("mistral-7b", Ollama("mistral:7b-instruct-fp16"), tokenizer=MISTRAL_7B),
    _mistral("mixtral-8x7b", Ollama("mixtral:8x7b"), tokenizer=MISTRAL_7B, model_type="mixtral"),
    _mistral(
        "mixtral-8x22b",
        Ollama("mixtral:8x22b"),
        tokenizer=MISTRAL_7B,
        model_type="mixtral",
        special=("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    ),
    _mistral(
        "nous-hermes2-mixtral",
        Ollama("nous-hermes2-mixtral:8x7b"),
        tokenizer=MISTRAL_7B,
        model_type="mixtral",
        ends=("<|im_end|>",),
        special=("<|im_start|>",),
    ),
    _mistral("mistral-nemo", Configured(sources.NEMO), tools="mistral"),
    _mistral("mistral-small", Ollama("mistral-small:24b"), special=_TEKKEN_MARKS),
    _mistral("mistral-large", Ollama("mistral-large:123b"), special=_TEKKEN_MARKS),
    _mistral("devstral", Ollama("devstral:latest"), special=_TEKKEN_MARKS, is_own=False),
    _mistral("mistral-v7", MistralCommon("v7"), tools="mistral", special=_TEKKEN_MARKS),
    *(
        _mistral(
            f"mistral-{version}{'-thinks' if thinks else ''}",
            MistralCommon(version, thinks),
            tools="mistral_v11",
            reasons=thinks,
            special=_TEKKEN_MARKS,
            is_own=False,
        )
        for version, thinks in (("v11", False), ("v13", False), ("v13", True))
    ),
    _gemma("gemma2", Trl("gemma"), model_type="gemma2"),
    _gemma("gemma3", Trl("gemma3"), model_type="gemma3_text"),
    _gemma("gemma3-1b", Ollama("gemma3:1b"), model_type="gemma3_text"),
    *(
        _gemma(
            f"gemma4{version}",
            Trl(f"gemma4{version}"),
            tools="gemma4",
            reasons=True,
            special=_GEMMA4_MARKS,
            ends=("<turn|>", "<eos>", "<|tool_response>"),
            model_type="gemma4_text",
            is_own=False,
        )
        for version in ("", "_v2", "_v5")
    ),
    _phi("phi3", Trl("phi3"), bos="<s>"),
    _phi("phi3-medium", Ollama("phi3:14b"), bos="<s>"),
    _phi("phi3.5", Trl("phi3_5"), bos="<s>"),
    _phi(
        "phi4",
        Ollama("phi4:14b"),
        tokenizer=QWEN2_5,
        ends=_CHATML,
        special=("<|im_sep|>",),
    ),
    _phi(
        "phi4-reasoning",
        Ollama("phi4-reasoning:14b"),
        tokenizer=QWEN2_5,
        ends=_CHATML,
        special=("<|im_sep|>",),
        plain=_THINK_TAGS,
        reasons=True,
    ),
    _phi(
        "phi4-mini",
        Ollama("phi4-mini:3.8b"),
        tokenizer=GPT_OSS,
        tools="phi4_mini",
        plain=("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>"),
    ),
    Family(
        "gpt-oss",
        Trl("gptoss"),
        GPT_OSS,
        ("<|return|>", "<|endoftext|>", "<|call|>"),
        bos="<|startoftext|>",
        tools="harmony",
        reasons=True,
        model_type="gpt_oss",
    ),
    _deepseek("deepseek-v3", Trl("deepseekv3"), "deepseek_v3", DEEPSEEK_V3),
    _deepseek("deepseek-v3.1", Ollama("deepseek-v3.1:latest"), "deepseek_v31", DEEPSEEK_V4),
    Family(
        "glm4.5",
        Trl("glm4moe"),
        QWEN3,
        _GLM_ENDS,
        tools="glm45",
        reasons=True,
        special=_GLM_MARKS,
        plain=_GLM_TAGS,
        is_own=False,
        is_served=False,
    ),
    _lfm2("lfm2", Trl("lfm2_v2")),
    _lfm2("lfm2.5", Trl("lfm2_2_5_v2"), reasons=True, plain=_THINK_TAGS),
)
# Families whose formats of calls no served family uses.
CALLING_OTHERWISE = ("glm4.5", "lfm2")
SERVED = tuple(one for one in FAMILIES if one.is_served)


def family(name: str) -> Family:
    """Return the family of that name."""
    return next(one for one in FAMILIES if one.name == name)
