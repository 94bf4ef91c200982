"""A second, plain description of the text of each format's calls, to check parsers and grammars."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from gateway.turn_formats.families.named import (
    deepseek,
    functionary,
    gemma,
    glm4,
    harmony,
    kimi,
    pythonic,
    solar,
)
from gateway.turn_formats.families.objects import cohere, hermes, llama, mistral, object_lists
from gateway.turn_formats.families.tagged import elements, kimi_k3, muse, tagged_families
from gateway.turn_formats.turn_format import ToolSpec, TurnParser
from tests.gateway.turn_formats.turns import TOOLS

Call = tuple[str, object]


def tagged(each: str) -> Callable[[dict[str, object]], str]:
    """Return a function that writes each argument by `each`, whose two %s are its name and
    value.
    """

    def spelled(arguments: dict[str, object]) -> str:
        values = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in arguments.items()
        }
        return "".join(each % named for named in values.items())

    return spelled


def in_dsml(arguments: dict[str, object]) -> str:
    """Write arguments in tags, with an attribute that says whether the value is a string."""
    return "".join(
        f'<{DSML}parameter name="{name}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</{DSML}parameter>\n"
        for name, value in arguments.items()
    )


def in_xtml(arguments: dict[str, object]) -> str:
    """Write arguments in tags, with an attribute for the value's type."""
    kinds = {bool: "boolean", dict: "object", list: "array", str: "string"}
    return "".join(
        f'<|open|>argument key="{name}" type="{kinds.get(type(value), "number")}"<|sep|>'
        f"{value if isinstance(value, str) else json.dumps(value)}<|close|>argument<|sep|>"
        for name, value in arguments.items()
    )


def in_cdata(arguments: dict[str, object]) -> str:
    """Write arguments, with texts that contain `<` in CDATA."""
    quoted = {
        name: f"<![CDATA[{value}]]>" if isinstance(value, str) and "<" in value else value
        for name, value in arguments.items()
    }
    return tagged('<param name="%s">%s</param>')(quoted)


def in_elements(arguments: dict[str, object]) -> str:
    """Write arguments as elements named like them; lists and trees are nested elements, other
    objects are JSON.
    """
    return "".join(
        f"{NS}<{name}>{_in_element(value)}{NS}</{name}>" for name, value in arguments.items()
    )


def _in_element(value: object) -> str:
    if isinstance(value, dict) and all(isinstance(one, dict) for one in value.values()):
        return in_elements(value)
    if isinstance(value, list):
        return "".join(in_elements({"item": one}) for one in value)
    return value if isinstance(value, str) else json.dumps(value)


def as_keywords(arguments: dict[str, object]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value) if isinstance(value, str | dict | list) else repr(value)}"
        for name, value in arguments.items()
    )


def in_gemma(value: object, quote: str) -> str:
    if isinstance(value, dict):
        members = [f"{key}:{in_gemma(one, quote)}" for key, one in sorted(value.items())]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(in_gemma(one, quote) for one in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


class Written(Struct, frozen=True):
    """The form of a format's calls, described a second time to check its grammars."""

    format: type[Any]
    call: str  # a call's text, with %s for its name and arguments
    names: int = 1  # how often the name is written in a call
    between: str = ""
    opens: str = ""
    closes: str = ""
    holds_arguments: bool = False  # the parser holds back arguments until they are complete
    special: tuple[str, ...] = ()
    keeps_space: bool = False  # spaces around markers are part of the text
    before_text: str = ""  # text before the part that grammars check
    has_token: bool = False  # after a text, calls begin with a special token
    starts_turn: bool = False  # calls can only begin a turn
    spell: Callable[[Any], str] = json.dumps
    after_text: str = ""  # text between the turn's text and its calls, before `opens`
    marks_text: bool = False  # text may also be between markers
    text_end: str = ""  # the marker that ends a text before calls

    def turn(self, *calls: Call) -> str:
        written = [
            self.call % (*([name] * self.names), self.arguments(value)) for name, value in calls
        ]
        return self.opens + self.between.join(written) + self.closes

    def parser(self, tools: tuple[ToolSpec, ...] = TOOLS) -> TurnParser:
        made: TurnParser = self.format().parser(tools)
        return made

    def arguments(self, value: object) -> str:
        return self.spell(value)


TAG = "<|python_tag|>"
CALLS, CALLS_END, CALL, CALL_END, SEP = deepseek.DeepSeekV3Format.markers
NS = "]<]minimax[>["
DSML = "\uff5cDSML\uff5c"
_HY3 = [
    f"<{slash}{name}:opensource>" for name in ("tool_calls", "tool_call") for slash in ("", "/")
]
_HY3 += ["<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>"]
_HY3 += ["<arg_value:opensource>", "</arg_value:opensource>"]
_GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
FORMATS = {
    "hermes": Written(
        hermes.HermesFormat,
        '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
        between="\n",
        special=("<tool_call>", "</tool_call>"),
    ),
    "qwen3_coder": Written(
        tagged_families.Qwen3CoderFormat,
        "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>",
        between="\n",
        spell=tagged("<parameter=%s>\n%s\n</parameter>\n"),
        special=("<tool_call>", "</tool_call>"),
    ),
    "llama3_json": Written(
        llama.LlamaFormat,
        '{"name": "%s", "parameters": %s}',
        between="; ",
        special=(TAG,),
        after_text=TAG,
        has_token=True,
    ),
    "harmony": Written(
        harmony.HarmonyFormat,
        "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s",
        between="<|call|><|start|>assistant",
        closes="<|call|>",
        keeps_space=True,
        before_text="<|channel|>final<|message|>",
        after_text="<|end|><|start|>assistant",
        marks_text=True,
        special=harmony.HarmonyFormat.markers,
    ),
    "pythonic": Written(
        pythonic.PythonicFormat,
        "%s(%s)",
        opens="[",
        between=", ",
        closes="]",
        spell=as_keywords,
        starts_turn=True,
        holds_arguments=True,
    ),
    "functiongemma": Written(
        gemma.FunctionGemmaFormat,
        "<start_function_call>call:%s%s<end_function_call>",
        spell=lambda value: in_gemma(value, "<escape>"),
        special=gemma.FunctionGemmaFormat.markers,
    ),
    "gemma4": Written(
        gemma.Gemma4Format,
        "<|tool_call>call:%s%s<tool_call|>",
        spell=lambda value: in_gemma(value, '<|"|>'),
        special=gemma.Gemma4Format.markers,
    ),
    "mistral": Written(
        mistral.MistralFormat,
        '{"name": "%s", "arguments": %s}',
        opens="[TOOL_CALLS] [",
        between=", ",
        closes="]",
        special=("[TOOL_CALLS]",),
    ),
    "mistral_v11": Written(
        mistral.MistralV11Format, "[TOOL_CALLS]%s[ARGS]%s", special=("[TOOL_CALLS]", "[ARGS]")
    ),
    "deepseek_v3": Written(
        deepseek.DeepSeekV3Format,
        f"{CALL}function{SEP}%s\n```json\n%s\n```{CALL_END}",
        opens=CALLS,
        between="\n",
        closes=CALLS_END,
        special=(CALLS, CALLS_END, CALL, CALL_END, SEP),
    ),
    "deepseek_v31": Written(
        deepseek.DeepSeekV31Format,
        f"{CALL}%s{SEP}%s{CALL_END}",
        opens=CALLS,
        closes=CALLS_END,
        special=(CALLS, CALLS_END, CALL, CALL_END, SEP),
    ),
    "cohere": Written(
        cohere.CohereFormat,
        '{"tool_call_id": "0", "tool_name": "%s", "parameters": %s}',
        opens="<|START_ACTION|>[\n    ",
        between=",\n    ",
        closes="\n]<|END_ACTION|>",
        special=("<|START_ACTION|>", "<|END_ACTION|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        marks_text=True,
    ),
    "glm4": Written(
        glm4.Glm4Format,
        "%s\n%s",
        between="<|assistant|>",
        starts_turn=True,
        special=glm4.Glm4Format.markers,
    ),
    "glm45": Written(
        tagged_families.Glm45Format,
        "<tool_call>%s\n%s</tool_call>",
        between="\n",
        spell=tagged("<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"),
        special=_GLM,
    ),
    "glm47": Written(
        tagged_families.Glm47Format,
        "<tool_call>%s%s</tool_call>",
        spell=tagged("<arg_key>%s</arg_key><arg_value>%s</arg_value>"),
        special=_GLM,
    ),
    "kimi_k2": Written(
        kimi.KimiK2Format,
        "<|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
        opens="<|tool_calls_section_begin|>",
        closes="<|tool_calls_section_end|>",
        special=kimi.KimiK2Format.markers,
    ),
    "lfm2": Written(
        pythonic.Lfm2Format,
        "%s(%s)",
        opens="<|tool_call_start|>[",
        between=", ",
        closes="]<|tool_call_end|>",
        spell=as_keywords,
        holds_arguments=True,
        special=pythonic.Lfm2Format.markers,
    ),
    "olmo3": Written(
        pythonic.Olmo3Format,
        "%s(%s)",
        opens="<function_calls>",
        between="\n",
        closes="</function_calls>",
        spell=lambda arguments: ", ".join(f"{k}={json.dumps(v)}" for k, v in arguments.items()),
        holds_arguments=True,
        special=pythonic.Olmo3Format.markers,
    ),
    "minimax_m2": Written(
        tagged_families.MiniMaxM2Format,
        '<invoke name="%s">\n%s</invoke>\n',
        opens="<minimax:tool_call>\n",
        closes="</minimax:tool_call>",
        spell=tagged('<parameter name="%s">%s</parameter>\n'),
        special=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "seed_oss": Written(
        tagged_families.SeedOssFormat,
        "<seed:tool_call>\n<function=%s>\n%s</function>\n</seed:tool_call>",
        between="\n",
        spell=tagged("<parameter=%s>%s</parameter>\n"),
        special=("<seed:tool_call>", "</seed:tool_call>"),
    ),
    "apertus": Written(
        object_lists.ApertusFormat,
        '{"%s": %s}',
        opens="<|tools_prefix|>[",
        between=", ",
        closes="]<|tools_suffix|>",
        special=object_lists.ApertusFormat.markers,
    ),
    "apriel": Written(
        object_lists.AprielFormat,
        '{"name": "%s", "arguments": %s}',
        opens="<tool_calls>[",
        between=", ",
        closes="]</tool_calls>",
        marks_text=True,
    ),
    "gigachat3": Written(
        object_lists.GigaChat3Format,
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "%s", "arguments": %s}',
        between="\n",
        special=("<|message_sep|>", "<|role_sep|>"),
        marks_text=True,
        text_end="<|message_sep|>",
    ),
    "gigachat31": Written(
        object_lists.GigaChat31Format,
        '<|function_call|>{"name": "%s", "arguments": %s}',
        between="\n",
        special=("<|function_call|>", "<|message_sep|>"),
        marks_text=True,
    ),
    "granite": Written(
        object_lists.GraniteFormat,
        '{"name": "%s", "arguments": %s}',
        opens="<|tool_call|>[",
        between=", ",
        closes="]",
        special=("<|tool_call|>",),
    ),
    "phi4_mini": Written(
        object_lists.Phi4MiniFormat,
        '{"name": "%s", "arguments": %s}',
        opens="<|tool_call|>[",
        between=", ",
        closes="]<|/tool_call|>",
    ),
    "minimax_m1": Written(
        object_lists.MiniMaxM1Format,
        '{"name": "%s", "arguments": %s}',
        opens="<tool_calls>\n",
        between="\n",
        closes="\n</tool_calls>",
    ),
    "nemotron_nano2": Written(
        object_lists.NemotronNano2Format,
        '{"name": "%s", "arguments": %s}',
        opens="<TOOLCALL>[",
        between=", ",
        closes="]</TOOLCALL>",
    ),
    "deepseek_v32": Written(
        tagged_families.DeepSeekV32Format,
        f'<{DSML}invoke name="%s">\n%s</{DSML}invoke>\n',
        opens=f"<{DSML}function_calls>\n",
        closes=f"</{DSML}function_calls>",
        spell=in_dsml,
    ),
    "deepseek_v4": Written(
        tagged_families.DeepSeekV4Format,
        f'<{DSML}invoke name="%s">\n%s</{DSML}invoke>\n',
        opens=f"<{DSML}tool_calls>\n",
        closes=f"</{DSML}tool_calls>",
        spell=in_dsml,
    ),
    "hy3": Written(
        tagged_families.Hy3Format,
        "<tool_call:opensource>%s<tool_sep:opensource>\n%s</tool_call:opensource>\n",
        opens="<tool_calls:opensource>\n",
        closes="</tool_calls:opensource>",
        spell=tagged(
            "<arg_key:opensource>%s</arg_key:opensource>\n"
            "<arg_value:opensource>%s</arg_value:opensource>\n"
        ),
        special=tuple(_HY3),
    ),
    "minicpm5": Written(
        tagged_families.MiniCpm5Format,
        '<function name="%s">%s</function>',
        between="\n",
        spell=in_cdata,
    ),
    "minimax_m3": Written(
        elements.MiniMaxM3Format,
        f'{NS}<invoke name="%s">%s{NS}</invoke>\n',
        opens=f"{NS}<tool_call>\n",
        closes=f"{NS}</tool_call>",
        spell=in_elements,
        special=(NS,),
    ),
    "kimi_k3": Written(
        kimi_k3.KimiK3Format,
        '<|open|>call tool="%s" index="1"<|sep|>%s<|close|>call<|sep|>',
        opens="<|open|>tools<|sep|>",
        closes="<|close|>tools<|sep|>",
        spell=in_xtml,
        special=("<|open|>", "<|close|>", "<|sep|>"),
        marks_text=True,
    ),
    "solar_open": Written(
        solar.SolarOpenFormat,
        "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>%s<|tool_call:args|>%s<|tool_call:end|>",
        opens="<|tool_calls|>",
        special=solar.SolarOpenFormat.markers,
        marks_text=True,
    ),
    "muse": Written(
        muse.MuseFormat,
        'to=%s<|message|><atem:function_calls>\n<atem:invoke name="%s">\n%s</atem:invoke>\n'
        "</atem:function_calls>",
        names=2,
        between="<|eom|><|start|>assistant ",
        spell=tagged('<atem:parameter name="%s">%s</atem:parameter>\n'),
        special=("<|start|>", "<|message|>", "<|eom|>"),
        marks_text=True,
        before_text="to=user<|message|>",
        after_text="<|eom|><|start|>assistant ",
        text_end="to=get_weather<|message|>",
    ),
    "functionary_v31": Written(functionary.FunctionaryV31Format, "<function=%s>%s</function>"),
    "functionary_v32": Written(
        functionary.FunctionaryV32Format,
        "%s\n%s",
        between=">>>",
        marks_text=True,
        before_text="all\n",
        after_text=">>>",
    ),
    "nemotron_mini": Written(
        object_lists.NemotronMiniFormat,
        '<toolcall> {"name": "%s", "arguments": %s} </toolcall>',
        between="\n",
    ),
    "command_r": Written(
        cohere.CommandRFormat,
        '    {\n        "tool_name": "%s",\n        "parameters": %s\n    }',
        opens="Action:\n```json\n[\n",
        between=",\n",
        closes="\n]```",
    ),
    "functools": Written(
        object_lists.FunctoolsFormat,
        '{"name": "%s", "arguments": %s}',
        opens="functools[",
        between=", ",
        closes="]",
    ),
    "granite_20b": Written(
        object_lists.Granite20bFormat,
        '<function_call> {"name": "%s", "arguments": %s}',
        between="\n",
    ),
    "internlm2": Written(
        object_lists.InternLm2Format,
        '<|action_start|><|plugin|>\n{"name": "%s", "arguments": %s}<|action_end|>',
        between="\n",
        special=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
}
