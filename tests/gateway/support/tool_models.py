"""Models that call tools, one for each format of calls.

Each has a byte tokenizer with the format's tokens, and a chat template that writes the same as the
family's own, apart from spaces and order. Qwen3's template is the published one; the others are as
short as the format allows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from engine.link.messages import Welcome
from tests.doubles.engine.fake_engine import WELCOME
from tests.doubles.engine.tiny_model import byte_tokenizer
from tests.gateway.turn_formats.formats import (
    CALL,
    CALL_END,
    CALLS,
    CALLS_END,
    DSML,
    FORMATS,
    NS,
    SEP,
    Call,
)

_QWEN3 = Path(__file__).parent.parent / "templates" / "qwen3.jinja"
_FRAME = """\
{{- bos_token }}
{%- macro spelled(v, quote) %}
{%- if v is mapping %}{ {%- for k, one in v | dictsort(reverse=true) -%}
{{ k }}:{{ spelled(one, quote) }}{{ "," if not loop.last }}{% endfor %}}
{%- elif v is string %}{{ quote + v + quote }}
{%- elif v is sequence %}[{% for one in v %}{{ spelled(one, quote) }}{{ "," if not loop.last }}
{%- endfor %}]{% else %}{{ v | tojson }}{% endif %}
{%- endmacro %}
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) + eos_token }}{% endif %}
{%- for message in messages %}
{{- "<|turn|>" + message.role + ":" }}
{%- if message.reasoning_content %}{{ "OPENS" + message.reasoning_content + "CLOSES" }}{% endif %}
{{- message.content }}
{%- if message.tool_calls %}CALLS{% endif %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|turn|>assistant:" }}{% endif %}"""
_HARMONY = """\
{{- "<|start|>system<|message|>" + (tools | tojson if tools else "") + "<|end|>" }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.reasoning_content %}
{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.reasoning_content + "<|end|>" }}
{%- endif %}
{%- for call in message.tool_calls %}
{{- "<|start|>assistant to=functions." + call.function.name + "<|channel|>commentary " }}
{{- "json<|message|>" + (call.function.arguments | tojson) + "<|call|>" }}
{%- endfor %}
{%- elif message.role == "assistant" %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
{%- elif message.role == "tool" %}
{{- "<|start|>functions to=assistant<|channel|>commentary<|message|>" }}
{{- (message.content | tojson) + "<|end|>" }}
{%- else %}{{ "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}"""


def _each(call: str, between: str = "") -> str:
    """Write a template's loop over calls; in `call`, NAME and JSON stand for the call's name and
    arguments.
    """
    call = call.replace("NAME", "{{ call.function.name }}")
    call = call.replace("JSON", "{{ call.function.arguments | tojson }}")
    last = f"{{{{ {json.dumps(between)} if not loop.last }}}}" if between else ""
    return "{% for call in message.tool_calls %}" + call + last + "{% endfor %}"


def _tagged(each: str) -> str:
    """Write template code that loops over arguments; in `each`, KEY and VALUE stand for an
    argument's name and value.
    """
    each = each.replace("KEY", "{{ k }}")
    each = each.replace("VALUE", "{{ v if v is string else v | tojson }}")
    arguments = "call.function.arguments | dictsort(reverse=true)"
    return f"{{% for k, v in {arguments} %}}{each}{{% endfor %}}"


_KEYWORDS = (
    "{% for k, v in call.function.arguments | dictsort(reverse=true) %}"
    "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}"
)


def _in_gemma(opens: str, closes: str, quote: str) -> str:
    return _each(f"{opens}call:NAME{{{{ spelled(call.function.arguments, '{quote}') }}}}{closes}")


_THINK = ("<think>\n", "\n</think>\n\n")
_BRACKETS = ("[THINK]", "[/THINK]")
_CHANNEL = ("<|channel>thought\n", "<channel|>")
_CODER = _tagged("<parameter=KEY>\nVALUE\n</parameter>\n")
_SEED = _tagged("<parameter=KEY>VALUE</parameter>\n")
_MINIMAX = _tagged('<parameter name="KEY">VALUE</parameter>\n')
_PARAM = _tagged('<param name="KEY">VALUE</param>')
_ITEMS = f"{{% for one in v %}}{NS}<item>{{{{ one }}}}{NS}</item>{{% endfor %}}"
_ELEMENTS = _tagged(f"{NS}<KEY>LIST{NS}</KEY>").replace(
    "LIST",
    "{% if v is sequence and v is not string %}" + _ITEMS + "{% else %}{{ v }}{% endif %}",
)
_HY3 = _tagged(
    "<arg_key:opensource>KEY</arg_key:opensource>\n"
    "<arg_value:opensource>VALUE</arg_value:opensource>\n"
)
_GLM45 = _tagged("<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n")
_GLM47 = _tagged("<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>")


def _in_dsml(block: str) -> str:
    typed = 'string="{{ "true" if v is string else "false" }}"'
    each = _tagged(f'<{DSML}parameter name="KEY" {typed}>VALUE</{DSML}parameter>\n')
    calls = _each(f'<{DSML}invoke name="NAME">\n{each}</{DSML}invoke>\n')
    return f"\n\n<{DSML}{block}>\n{calls}</{DSML}{block}>"


_COHERE = '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "NAME", "parameters": JSON}'
_NAMED = '{"name": "NAME", "arguments": JSON}'
_KIMI = "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>JSON<|tool_call_end|>"
# The texts with which templates write calls and reasoning; "": the template is in a separate file.
_WRITES: dict[str, tuple[str, tuple[str, str] | None]] = {
    "hermes": ("", _THINK),
    "harmony": ("", ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")),
    "qwen3_coder": (
        _each(f"\n<tool_call>\n<function=NAME>\n{_CODER}</function>\n</tool_call>"),
        _THINK,
    ),
    "llama3_json": (_each('{"name": "NAME", "parameters": JSON}', "; "), None),
    "pythonic": ("[" + _each(f"NAME({_KEYWORDS})", ", ") + "]", None),
    "functiongemma": (
        _in_gemma("<start_function_call>", "<end_function_call>", "<escape>"),
        None,
    ),
    "gemma4": (_in_gemma("<|tool_call>", "<tool_call|>", '<|"|>'), _CHANNEL),
    "mistral": (
        "[TOOL_CALLS] ["
        + _each('{"name": "NAME", "arguments": JSON, "id": "{{ (call.id or "none")[-9:] }}"}', ", ")
        + "]",
        _BRACKETS,
    ),
    "mistral_v11": (_each("[TOOL_CALLS]NAME[ARGS]JSON"), _BRACKETS),
    "deepseek_v3": (
        CALLS + _each(f"{CALL}function{SEP}NAME\n```json\nJSON\n```{CALL_END}", "\n") + CALLS_END,
        _THINK,
    ),
    "deepseek_v31": (CALLS + _each(f"{CALL}NAME{SEP}JSON{CALL_END}") + CALLS_END, _THINK),
    "cohere": (
        "<|START_ACTION|>[\n    " + _each(_COHERE, ",\n    ") + "\n]<|END_ACTION|>",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    "glm4": (_each("NAME\nJSON", "<|assistant|>"), None),
    "glm45": (_each(f"\n<tool_call>NAME\n{_GLM45}</tool_call>"), _THINK),
    "glm47": (_each(f"<tool_call>NAME{_GLM47}</tool_call>"), _THINK),
    "kimi_k2": (
        "<|tool_calls_section_begin|>" + _each(_KIMI) + "<|tool_calls_section_end|>",
        _THINK,
    ),
    "lfm2": (
        "<|tool_call_start|>[" + _each(f"NAME({_KEYWORDS})", ", ") + "]<|tool_call_end|>",
        _THINK,
    ),
    "olmo3": ("<function_calls>" + _each(f"NAME({_KEYWORDS})", "\n") + "</function_calls>", None),
    "minimax_m2": (
        "\n<minimax:tool_call>\n"
        + _each(f'<invoke name="NAME">\n{_MINIMAX}</invoke>\n')
        + "</minimax:tool_call>",
        _THINK,
    ),
    "seed_oss": (
        _each(f"\n<seed:tool_call>\n<function=NAME>\n{_SEED}</function>\n</seed:tool_call>"),
        ("<seed:think>", "</seed:think>"),
    ),
    "deepseek_v32": (_in_dsml("function_calls"), _THINK),
    "deepseek_v4": (_in_dsml("tool_calls"), _THINK),
    "hy3": (
        "<tool_calls:opensource>\n"
        + _each(f"<tool_call:opensource>NAME<tool_sep:opensource>\n{_HY3}</tool_call:opensource>\n")
        + "</tool_calls:opensource>",
        ("<think:opensource>", "</think:opensource>"),
    ),
    "kimi_k3": (
        "<|open|>tools<|sep|>"
        + _each(
            '<|open|>call tool="NAME" index="{{ loop.index }}"<|sep|>'
            + _tagged(
                '<|open|>argument key="KEY" type="{{ "string" if v is string else "number" if v is '
                'number else "array" }}"<|sep|>VALUE<|close|>argument<|sep|>'
            )
            + "<|close|>call<|sep|>"
        )
        + "<|close|>tools<|sep|>",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    "solar_open": (
        "<|tool_calls|>"
        + _each(
            "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>NAME<|tool_call:args|>JSON"
            "<|tool_call:end|>"
        ),
        ("<|think|>", "<|end|><|begin|>assistant"),
    ),
    "minimax_m3": (
        f"{NS}<tool_call>\n"
        + _each(f'{NS}<invoke name="NAME">{_ELEMENTS}{NS}</invoke>\n')
        + f"{NS}</tool_call>",
        ("<mm:think>", "</mm:think>"),
    ),
    "minicpm5": (
        _each(
            '<function name="NAME">' + _tagged('<param name="KEY">VALUE</param>') + "</function>"
        ),
        _THINK,
    ),
    "apertus": (
        "<|tools_prefix|>[" + _each('{"NAME": JSON}', ", ") + "]<|tools_suffix|>",
        None,
    ),
    "apriel": ("<tool_calls>[" + _each(_NAMED, ", ") + "]</tool_calls>", None),
    "gigachat3": (_each("<|message_sep|>\n\nfunction call<|role_sep|>\n" + _NAMED), None),
    "gigachat31": (_each("<|function_call|>" + _NAMED), None),
    "granite": ("<|tool_call|>[" + _each(_NAMED, ", ") + "]", None),
    "phi4_mini": ("<|tool_call|>[" + _each(_NAMED, ", ") + "]<|/tool_call|>", None),
    "minimax_m1": ("<tool_calls>\n" + _each(_NAMED + "\n") + "</tool_calls>", None),
    "muse": (
        _each(
            "<|eom|><|start|>assistant to=NAME<|message|><atem:function_calls>\n"
            '<atem:invoke name="NAME">\n'
            + _tagged('<atem:parameter name="KEY">VALUE</atem:parameter>\n')
            + "</atem:invoke>\n</atem:function_calls>"
        ),
        (" to=self<|message|>", "<|eom|><|start|>assistant"),
    ),
    "functionary_v31": (_each("<function=NAME>JSON</function>"), None),
    "functionary_v32": (_each(">>>NAME\nJSON"), None),
    "nemotron_mini": (_each("<toolcall> " + _NAMED + " </toolcall>", "\n"), None),
    "command_r": (
        "Action:\n```json\n[\n"
        + _each('    {\n        "tool_name": "NAME",\n        "parameters": JSON\n    }', ",\n")
        + "\n]```",
        None,
    ),
    "functools": ("functools[" + _each(_NAMED, ", ") + "]", None),
    "granite_20b": (_each("<function_call> " + _NAMED, "\n"), None),
    "internlm2": (_each("<|action_start|><|plugin|>\n" + _NAMED + "<|action_end|>", "\n"), None),
    "nemotron_nano2": ("<TOOLCALL>[" + _each(_NAMED, ", ") + "]</TOOLCALL>", _THINK),
}
# tokens added to the vocabulary that are not special
_PLAIN = ("<tool_call>", "</tool_call>", "<think>", "</think>")
_CHATML = ("<|im_start|>", "<|im_end|>")
_QUOTED = {"pythonic", "lfm2"}  # formats in which a model may use either kind of quotes


@dataclass(frozen=True)
class ToolModel:
    """A model's directory, and the form in which the model writes turns."""

    format_name: str
    directory: Path
    inner: Tokenizer
    opens: str | None  # text that opens its reasoning; None: it does not reason
    closes: str

    @property
    def welcome(self) -> Welcome:
        """Return the welcome of an engine that runs this model."""
        ends = ("<|eos|>", "<|im_end|>", "<|call|>", "<|return|>")
        ids = [self.inner.token_to_id(end) for end in ends]
        return msgspec.structs.replace(
            WELCOME,
            vocab_size=self.inner.get_vocab_size(),
            max_model_len=1 << 16,
            eos_token_ids=tuple(one for one in ids if one is not None),
        )

    def writes(self, reasoning: str, text: str, *calls: Call) -> list[int]:
        """Return the tokens of a turn as the model writes it, without its end token."""
        thought = "" if self.opens is None else f"{self.opens}{reasoning}{self.closes}"
        if self.format_name == "harmony" and not calls:
            text = f"<|channel|>final<|message|>{text}"
        elif self.format_name == "harmony" and text:
            text = f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"
        spelled = (text + (self._calls(calls) if calls else "")).removesuffix("<|call|>")
        whole = thought + spelled if reasoning else spelled
        ids: list[int] = self.inner.encode(whole, add_special_tokens=False).ids
        return ids

    def _calls(self, calls: Sequence[Call]) -> str:
        """Write calls in another form than the template's, if the format has one."""
        written = FORMATS[self.format_name]
        if written.spell is not json.dumps:
            turn = written.turn(*calls)
            return turn.replace('"', "'") if self.format_name in _QUOTED else turn
        spelled = [
            written.call % (name, json.dumps(value, separators=(",", ":"))) for name, value in calls
        ]
        return written.opens + written.between.join(spelled) + written.closes


def write_tool_model(directory: Path, format_name: str, template: str | None = None) -> ToolModel:
    """Write the model files of a format, with its own template or with `template`."""
    directory.mkdir(parents=True)
    calls, reasoning = _WRITES[format_name]
    opens, closes = reasoning or (None, "")
    special = FORMATS[format_name].special
    tokens = [*_CHATML, *special, *_reasoning_tokens(opens, closes, special)]
    inner = byte_tokenizer()
    for token in dict.fromkeys(tokens):
        added = AddedToken(token, special=token not in _PLAIN, normalized=False)
        (inner.add_tokens if token in _PLAIN else inner.add_special_tokens)([added])
    inner.save(str(directory / "tokenizer.json"))
    own = _template(format_name, calls, opens or "", closes)
    config: dict[str, Any] = {
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "chat_template": template or own,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ToolModel(format_name, directory, inner, opens, closes)


def _template(format_name: str, calls: str, opens: str, closes: str) -> str:
    if format_name == "hermes":
        return _QWEN3.read_text()
    if format_name == "harmony":
        return _HARMONY
    marks = [mark.replace("\n", "\\n") for mark in (opens, closes)]
    framed = _FRAME.replace("OPENS", marks[0]).replace("CLOSES", marks[1])
    return framed.replace("CALLS", calls)


def _reasoning_tokens(opens: str | None, closes: str, special: Sequence[str]) -> list[str]:
    """Return the marks around thoughts that are single tokens."""
    if opens is None or opens.startswith("<|channel|>"):
        return []
    marks = [opens.strip().removesuffix("thought"), closes.strip()]
    return [mark for mark in marks if not any(one in mark and one != mark for one in special)]
