"""Templates, and the formats that are recognised in them; the excerpts are from families' own
templates.
"""

from __future__ import annotations

import pytest

from gateway.turn_formats.choose import (
    ShownTurns,
    UnknownToolFormat,
    reasoning_format,
    tool_format,
    tool_format_names,
)
from gateway.turn_formats.families.named.deepseek import DeepSeekV3Format
from gateway.turn_formats.families.tagged.kimi_k3 import KimiK3Format
from gateway.turn_formats.pieces import CallStarted
from tests.gateway.turn_formats.formats import DSML, FORMATS, NS
from tests.gateway.turn_formats.turns import WEATHER

CALLS, _, CALL, _, SEP = DeepSeekV3Format.markers

_DSML = f"""'<{DSML}parameter name="' + key + '" string="true">'"""
EXCERPTS = {
    "hermes": r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n",
    "llama3_json": """{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""",
    "mistral": """{{- "[TOOL_CALLS] [" }}""",
    "mistral_v11": """{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}""",
    "deepseek_v3": f"'{CALLS}{CALL}' + tool['type'] + '{SEP}' + name + '\\n```json\\n' + arguments",
    "deepseek_v31": f"'{CALLS}{CALL}'+ tool['function']['name'] + '{SEP}' + arguments",
    "qwen3_coder": r"<tool_call>\n<function=example_function_name>\n<parameter=example_1>\n",
    "harmony": """{{- "<|channel|>commentary json<|message|>" }} " to=functions." + name""",
    "pythonic": "- Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]",
    "functiongemma": "{{- '<start_function_call>call:' + function['name'] + '{' -}}",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "cohere": '<|START_ACTION|>[ {"tool_name": "{{ call.name }}"',
    "glm4": "[gMASK]<sop><|{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}",
    "glm45": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}",
    "glm47": "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>x<|tool_call_argument_begin|>",
    "lfm2": """ns.system_prompt + "List of tools: <|tool_list_start|>[" -%}""",
    "olmo3": "{{- '<function_calls>' + message['function_calls'] + '</function_calls>' -}}",
    "minimax_m2": """'<minimax:tool_call>' <invoke name="tool-name"> <parameter name="key">""",
    "seed_oss": r"<seed:tool_call>\n<function=example_function_name>\n<parameter=example_1>",
    "deepseek_v32": f"""'<{DSML}function_calls>' '<{DSML}invoke name="' {_DSML}""",
    "deepseek_v4": f"""'<{DSML}tool_calls>' '<{DSML}invoke name="' {_DSML}""",
    "minimax_m3": f"""{{{{- '{NS}<invoke name="' + tool_call.name + '">' }}}}""",
    "kimi_k3": "".join(
        (*KimiK3Format.tags.begins, KimiK3Format.tags.key, *KimiK3Format.tags.keyed)
    ),
    "solar_open": "'<|tool_call:begin|>' + id + '<|tool_call:name|>' + name + '<|tool_call:args|>'",
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
    "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo",
    "minicpm5": """<function name="function-name"><param name="param-name">param-value</param>""",
    "apertus": """{{ tool_calls_token + '[' }} of a turn: <|tools_prefix|>[{"get_weather": """,
    "apriel": """{{- '<tool_calls>[' -}}{{- '{"name": "' + name + '", "arguments": ' }}""",
    "gigachat3": "<|message_sep|>\n\nfunction call<|role_sep|>\n",
    "gigachat31": "{{- '<|function_call|>' + message.content -}}",
    "granite": "respond only with <|tool_call|> followed by a JSON list of tools used",
    "phi4_mini": "'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>'",
    "minimax_m1": '{{ ai name=assistant <tool_calls>\n{"name": <tool-name>, "arguments": <args>}',
    "muse": """'<atem:function_calls>' '<atem:invoke name="' '<atem:parameter name="' + k + '">'""",
    "functionary_v31": '<function=example_function_name>{"example_name": "example_value"}',
    "functionary_v32": r"Respond in this format:\n>>>${recipient}\n${content}",
    "nemotron_mini": "'<tool> ' + tool|tojson + ' </tool>' '<extra_id_1>User'",
    "command_r": "Action:\n```json\n[\n    {",
    "functools": 'formatted as functools[{"name": [function name], "arguments": [arguments]}]',
    "granite_20b": """'<function_call> ' + {'name': name, 'arguments': arguments}|tojson""",
    "internlm2": '<|action_start|><|plugin|>\n{"name": ',
    "nemotron_nano2": """'<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}, '""",
}


def of_source(source: str | None, name: str | None = None) -> str | None:
    """Return the format recognised in a template's source alone."""
    found = tool_format(None if source is None else ShownTurns(source), name)
    return None if found is None else found.name


@pytest.mark.parametrize("name", FORMATS)
def test_a_template_tells_its_format(name: str) -> None:
    assert of_source(EXCERPTS[name]) == name
    others = [FORMATS[other].format() for other in FORMATS if other != name]
    assert not any(other.is_in(EXCERPTS[name]) for other in others)


# GLM-4 is left out: its template shows no calls, so its turn looks like one of Functionary 3.2.
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "glm4"])
def test_a_turn_that_a_template_shows_tells_more_than_its_source(name: str) -> None:
    arguments = {"city": "Oslo", "days": 3}
    shown = FORMATS[name].turn(("get_weather", arguments))
    assert shown_format(shown) == name
    assert shown_format(shown.replace("get_weather", "rm")) is None


def test_where_calls_are_shown_without_marks_the_tokenizer_tells() -> None:
    shown = '[{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "a"}]<|eot_id|>'
    assert shown_format(shown) is None
    assert shown_format(shown, ("<tool_call>", "</tool_call>", "<|python_tag|>")) == "hermes"
    assert shown_format(shown, ("</tool_call>", "<|python_tag|>")) == "llama3_json"
    assert shown_format("<x>" + shown, ("<tool_call>", "</tool_call>")) is None


def test_xlams_template_says_that_calls_have_no_marks() -> None:
    shown = '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|im_end|>'
    source = "When using tools, make calls in a single JSON array: "
    found = tool_format(ShownTurns(source, WEATHER, shown), None, {"<tool_call>": 1})
    assert found is not None
    assert found.name == "llama3_json"
    parser = found.parser([WEATHER])
    assert CallStarted("get_weather") in [*parser.feed(shown[:-10]), *parser.end()]


def shown_format(turn: str, tokens: tuple[str, ...] = ()) -> str | None:
    """Return the format recognised in a template that shows this turn, whatever its source."""
    shown = ShownTurns(EXCERPTS["qwen3_coder"], tool=WEATHER, call=turn)
    found = tool_format(shown, None, {token: place for place, token in enumerate(tokens)})
    return None if found is None else found.name


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        r"<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
        "<start_of_turn>model",
    ],
)
def test_other_templates_are_of_none(template: str | None) -> None:
    assert of_source(template) is None


def test_a_name_wins_and_an_unknown_one_is_refused_with_the_list() -> None:
    assert set(tool_format_names()) == set(FORMATS)
    for name in tool_format_names():
        assert of_source(EXCERPTS["hermes"], name) == name
    with pytest.raises(UnknownToolFormat, match="no tool format 'nope'; there are hermes, "):
        of_source(EXCERPTS["hermes"], "nope")


def reasoning_of(source: str, turn: str | None = None) -> tuple[str, str] | None:
    """Return the reasoning marks recognised in a template's source, and in a turn that it shows."""
    found = reasoning_format(ShownTurns(source, thinks="Hm. So.", thought=turn))
    return None if found is None else (found.opens, found.closes)


def test_a_template_tells_the_marks_of_reasoning() -> None:
    assert reasoning_of("{{ content.split('</think>')[-1] }}") == ("<think>", "</think>")
    assert reasoning_of("<|channel>thought\n<channel|>") == ("<|channel>thought", "<channel|>")
    assert reasoning_of(EXCERPTS["hermes"]) is None
    assert reasoning_of(EXCERPTS["harmony"]) is None
    assert reasoning_format(None) is None


@pytest.mark.parametrize(
    ("turn", "marks"),
    [
        ("<seed:think>Hm. So.</seed:think>\nYes.", ("<seed:think>", "</seed:think>")),
        ("<a>\nHm. So.\n</a>", ("<a>", "</a>")),
        ("<|START_T|>Hm. So.<|END_T|>", ("<|START_T|>", "<|END_T|>")),
        ("<|assistant|>Hm. So.<|end|>", None),
        ("<a>Hm. So.<a>", None),
        ("Thoughts:\nHm. So.\n[ANSWER]", None),
    ],
)
def test_a_pair_of_marks_around_a_thought_is_its_format(
    turn: str, marks: tuple[str, str] | None
) -> None:
    assert reasoning_of("", turn) == marks
    assert reasoning_of("</think>", turn) == ("<think>", "</think>"), "what is known counts first"
