"""Which formats a model's chat template is of.

A template shows the model how calls are written, so its source tells the format. The name given
by `--tool-format` wins.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.turn_formats.families.deepseek import DeepSeekV3Format, DeepSeekV31Format
from gateway.turn_formats.families.gemma import FunctionGemmaFormat, Gemma4Format
from gateway.turn_formats.families.harmony import HarmonyFormat
from gateway.turn_formats.families.hermes import HermesFormat
from gateway.turn_formats.families.llama import LlamaFormat
from gateway.turn_formats.families.mistral import MistralFormat, MistralV11Format
from gateway.turn_formats.families.pythonic import PythonicFormat
from gateway.turn_formats.families.qwen3_coder import Qwen3CoderFormat
from gateway.turn_formats.reasoning import GEMMA, MAGISTRAL, THINK, ReasoningFormat
from gateway.turn_formats.turn_format import ToolFormat

_FORMATS = (
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    MistralV11Format,
    DeepSeekV3Format,
    DeepSeekV31Format,
    Qwen3CoderFormat,
    HarmonyFormat,
    PythonicFormat,
    FunctionGemmaFormat,
    Gemma4Format,
)
_REASONING = (THINK, MAGISTRAL, GEMMA)


class UnknownToolFormat(ValueError):
    """There is no tool format of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no tool format {name!r}; there are {', '.join(tool_format_names())}")


def tool_format_names() -> tuple[str, ...]:
    """What `--tool-format` takes."""
    return tuple(one.name for one in _FORMATS)


def tool_format(
    template: str | None,
    name: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> ToolFormat | None:
    """The format named, or else the one that `template` is of; None for none of these.

    `template` is the source of the template for chats with tools. Raises UnknownToolFormat.
    """
    formats: list[ToolFormat] = [made(special_tokens) for made in _FORMATS]
    if name is not None:
        named = next((one for one in formats if one.name == name), None)
        if named is None:
            raise UnknownToolFormat(name)
        return named
    return next((one for one in formats if template and one.is_in(template)), None)


def reasoning_format(template: str | None) -> ReasoningFormat | None:
    """The marks of reasoning that `template` knows; None for none of these, and for Harmony."""
    return next((one for one in _REASONING if template and one.is_in(template)), None)
