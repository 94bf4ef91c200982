"""Calls as objects between markers: Nemotron Nano 2 and Mini, Apriel, MiniMax-M1 and others.

    <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>
    <tool_calls>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]</tool_calls>
    <|tools_prefix|>[{"get_weather": {"city": "Oslo"}}]<|tools_suffix|>
    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    <|function_call|>{"name": "get_weather", "arguments": {"city": "Oslo"}}
    <toolcall> {"name": "get_weather", "arguments": {"city": "Oslo"}} </toolcall>
    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>
    functools[{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    <function_call> {"name": "get_weather", "arguments": {"city": "Oslo"}}
    <|action_start|><|plugin|>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}<|action_end|>

The examples are from Nemotron Nano 2, Apriel, Apertus, Granite 3, GigaChat 3.1, Nemotron-Mini,
Phi-4-mini (twice), Granite 20B and InternLM 2.5, in this order. MiniMax-M1 writes each object on
its own line, without a list.
"""

import json
from typing import ClassVar

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.shapes.object_calls import ObjectFormat
from gateway.turn_formats.turn_format import ToolSpec

_CALLS, _CALLS_END = "<tool_calls>", "</tool_calls>"
_MESSAGE_END, _ROLE_END = "<|message_sep|>", "<|role_sep|>"


class NemotronNano2Format(ObjectFormat, begin="<TOOLCALL>", end="</TOOLCALL>"):
    """The `ToolFormat` of Nemotron Nano 2."""

    name: ClassVar[str] = "nemotron_nano2"


class AprielFormat(ObjectFormat, begin=_CALLS, end=_CALLS_END):
    """The `ToolFormat` of Apriel."""

    name: ClassVar[str] = "apriel"
    marks_text: ClassVar[bool] = True
    around_text = ("[END FINAL RESPONSE]",)


class MiniMaxM1Format(
    ObjectFormat, begin=_CALLS, end=_CALLS_END, opens="\n", between="\n", closes="\n"
):
    """The `ToolFormat` of MiniMax-M1."""

    name: ClassVar[str] = "minimax_m1"


class ApertusFormat(ObjectFormat, begin="<|tools_prefix|>", end="<|tools_suffix|>"):
    """The `ToolFormat` of Apertus."""

    name: ClassVar[str] = "apertus"
    names_are_keys: ClassVar[bool] = True

    def call(self, grammar: GrammarText, tool: ToolSpec) -> str:
        head = grammar.spelled(f"{{{json.dumps(tool.name, ensure_ascii=False)}: ")
        return f"{head} {grammar.arguments(tool)} {grammar.spelled('}')}"


class GraniteFormat(ObjectFormat, begin="<|tool_call|>", also=("<tool_call>",)):
    """The `ToolFormat` of Granite 3, whose templates show no calls.

    Granite 3.1 writes `<tool_call>`.
    """

    name: ClassVar[str] = "granite"

    def is_in(self, template: str) -> bool:
        """Tell whether a chat template, or a turn that it shows, names the marker of calls."""
        return self.trigger in template


class GigaChat3Format(
    ObjectFormat,
    begin=f"{_MESSAGE_END}\n\nfunction call{_ROLE_END}\n",
    opens="",
    between=None,
    closes="",
):
    """The `ToolFormat` of GigaChat 3, in which each call is a message."""

    name: ClassVar[str] = "gigachat3"
    marks_text: ClassVar[bool] = True
    around_text = (_MESSAGE_END,)
    tokens = (_ROLE_END,)


class GigaChat31Format(ObjectFormat, begin="<|function_call|>", opens="", between=None, closes=""):
    """The `ToolFormat` of GigaChat 3.1."""

    name: ClassVar[str] = "gigachat31"
    marks_text: ClassVar[bool] = True
    around_text = (_MESSAGE_END,)


class NemotronMiniFormat(
    ObjectFormat, begin="<toolcall>", end="</toolcall>", opens=" ", between=None, closes=" "
):
    """The `ToolFormat` of Nemotron-Mini, whose template shows no calls."""

    name: ClassVar[str] = "nemotron_mini"

    def is_in(self, template: str) -> bool:
        """Tell whether a template has the marker of calls, or the markers of roles and of tools."""
        return self.trigger in template or ("<extra_id_1>" in template and "<tool>" in template)


class Phi4MiniFormat(ObjectFormat, begin="<|tool_call|>", end="<|/tool_call|>"):
    """The `ToolFormat` of Phi-4-mini, whose template shows tools but no calls."""

    name: ClassVar[str] = "phi4_mini"

    def is_in(self, template: str) -> bool:
        """Tell whether a turn has a call, or a template the markers around tools."""
        has_call = self.trigger in template and self.end in template
        return has_call or ("<|tool|>" in template and "<|/tool|>" in template)


class FunctoolsFormat(ObjectFormat, begin="functools"):
    """The `ToolFormat` of Phi-4-mini with vLLM's template, which describes calls but shows none."""

    name: ClassVar[str] = "functools"


class Granite20bFormat(ObjectFormat, begin="<function_call>", opens=" ", between=None, closes=""):
    """The `ToolFormat` of Granite 20B's function calling model."""

    name: ClassVar[str] = "granite_20b"


class InternLm2Format(
    ObjectFormat,
    begin="<|action_start|><|plugin|>",
    end="<|action_end|>",
    opens="\n",
    between=None,
    closes="",
):
    """The `ToolFormat` of InternLM 2.5."""

    name: ClassVar[str] = "internlm2"
    tokens = ("<|action_start|>", "<|plugin|>")
