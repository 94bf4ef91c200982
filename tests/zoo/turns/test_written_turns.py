"""Turns that models write are returned correctly by chats, Responses and Messages, streamed or not.

Each family writes calls with its own control tokens, and with its own template; the engine sends
given tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.zoo.families import FAMILIES
from tests.zoo.family import Family
from tests.zoo.gateways import ZooGateway, zoo_gateway
from tests.zoo.more_families import MORE

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "c"},
        "days": {"allOf": [{"$ref": "#/$defs/days"}], "description": "d"},
    },
    "$defs": {"days": {"type": "integer"}},
}
NAMES = ("get_weather", "get_time")
ASKED = "Weather and time?"
OSLO = ("get_weather", {"city": "Oslo", "days": 3})
TIME: tuple[str, dict[str, Any]] = ("get_time", {})

_SEP, _CALL = "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581{}\uff5c>"
_BEGIN, _END = _CALL.format("begin"), _CALL.format("end")
_CALLS = "<\uff5ctool\u2581calls\u2581{}\uff5c>"
_HEAD = "<|channel|>commentary to={} <|constrain|>json<|message|>"


class Said(Struct, frozen=True):
    """A turn as an answer reports it."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def _in_glm(name: str, line: str = "\n", **arguments: Any) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{line}{''.join(pairs)}</tool_call>"


def _in_kimi(name: str, arguments: dict[str, Any]) -> str:
    begin, end = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    argued = f"<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
    return f"{begin}<|tool_call_begin|>{name}{argued}{end}"


def _in_dsml(block: str) -> str:
    bars = "\uff5cDSML\uff5c"
    name, typed = f"<{bars}parameter name=", f"</{bars}parameter>\n"
    return (
        f'So.\n\n<{bars}{block}>\n<{bars}invoke name="get_weather">\n'
        f'{name}"city" string="true">Oslo{typed}{name}"days" string="false">3{typed}'
        f'</{bars}invoke>\n<{bars}invoke name="get_time">\n</{bars}invoke>\n</{bars}{block}>'
    )


_OBJECTS = [{"name": name, "arguments": arguments} for name, arguments in (OSLO, TIME)]
_N = "]<]minimax[>["
_LIST, _LINES = json.dumps(_OBJECTS), "\n".join(map(json.dumps, _OBJECTS))
BOTH = Said(calls=(OSLO, TIME))
# For each family: the text that its model writes, and the turn that the answer must report.
TURNS: dict[str, list[tuple[str, Said]]] = {
    "qwen3": [
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {\'city\': \'Oslo\', "days": 3}}}\n'
            '</tool_call>,\n<tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>',
            BOTH,
        ),
        (
            '<think>\nHm.\n<tool_call>\n[{"name": "get_time", "arguments": ""}]\n</tool_call>',
            Said(reasoning="Hm.", calls=(TIME,)),
        ),
        ("<think>\nHm.\n</think>\n\n<b>1 < 2</b>", Said("<b>1 < 2</b>", "Hm.")),
    ],
    "qwen3-coder": [
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n<parameter=days>\n3\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
            BOTH,
        ),
        (
            "So.\n<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n"
            "<parameter=city>\nOslo",
            Said("So.", calls=(OSLO,)),
        ),
    ],
    "llama3.1": [
        (
            '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}; '
            '{"name": "get_time", "parameters": null}',
            BOTH,
        ),
        ('```json\n{"name": "get_time", "parameters": {}}\n```', Said(calls=(TIME,))),
        ('{"city": "Oslo"}', Said('{"city": "Oslo"}')),
    ],
    "mistral-nemo": [
        (
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}, '
            '{"name": "get_time", "arguments": "{}"}]',
            BOTH,
        ),
    ],
    "r1-distill-qwen": [
        (
            f"Hm.\n</think>\n\n{_CALLS.format('begin')}{_BEGIN}function{_SEP}get_weather\n```json\n"
            f'{{"city": "Oslo", "days": 3}}\n```{_END}\n{_BEGIN}function{_SEP}get_time\n```json\n'
            f"\n```{_END}{_CALLS.format('end')}",
            Said("", "Hm.", (OSLO, TIME)),
        ),
    ],
    "gpt-oss": [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            + _HEAD.format("get_weather")
            + '{"city": "Oslo", "days": 3}',
            Said("", "Hm.", (OSLO,)),
        ),
        (_HEAD.format("functions.get_time"), Said(calls=(TIME,))),
        ("<|channel|>final<|message|>1 < 2", Said("1 < 2")),
    ],
    "gemma4": [
        (
            '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
            "<|tool_call>call:get_time{}<tool_call|>",
            BOTH,
        ),
    ],
    "glm4.5": [
        (
            f"<think>Hm.</think>\n{_in_glm('get_weather', city='Oslo', days=3)}\n"
            f"{_in_glm('get_time')}",
            Said("", "Hm.", (OSLO, TIME)),
        ),
        ("<think></think>\nIt is 1 < 2.", Said("It is 1 < 2.")),
    ],
    "lfm2.5": [
        (
            "<think>Hm.</think>Let me look.<|tool_call_start|>[get_weather(city='Oslo', days=3), "
            "get_time()]<|tool_call_end|>",
            Said("Let me look.", "Hm.", (OSLO, TIME)),
        ),
    ],
}
# The same for families that only `make test-zoo` tests.
MORE_TURNS: dict[str, list[tuple[str, Said]]] = {
    "llama4": [
        (
            '<|python_start|>So.<|python_end|>{"name": "get_weather", "parameters": {"city": '
            '"Oslo", "days": 3}}{"name": "get_time", "parameters": {}}',
            Said("So.", calls=(OSLO, TIME)),
        ),
        (
            '<|python_start|>{"name": "get_time", "parameters": {}}<|python_end|>',
            Said(calls=(TIME,)),
        ),
    ],
    "glm4": [
        ('get_weather\n{"city": "Oslo", "days": 3}<|assistant|>get_time\n{}', BOTH),
        ("\nIt is cold.\nget_time\n{}", Said("\nIt is cold.\nget_time\n{}")),
    ],
    # Messages turns thinking off, after which this family's prompt ends differently
    "glm4.7-flash": [
        (_in_glm("get_weather", "", city="Oslo", days=3) + _in_glm("get_time", ""), BOTH),
    ],
    "kimi-k2": [
        (
            f"So.{_in_kimi('functions.get_weather:0', OSLO[1])}",
            Said("So.", "", (OSLO,)),
        ),
    ],
    "kimi-k2-thinking": [
        (
            f"<think>Hm.</think>{_in_kimi('get_time:3', {})}",
            Said("", "Hm.", (TIME,)),
        ),
    ],
    "minimax-m2": [
        (
            'Hm.\n</think>\n\nSo.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter '
            'name="city">Oslo</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
            '<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
            Said("So.", "Hm.", (OSLO, TIME)),
        ),
    ],
    "deepseek-v3.2": [(_in_dsml("function_calls"), Said("So.", calls=(OSLO, TIME)))],
    "deepseek-v4": [
        (_in_dsml("tool_calls"), Said("So.", calls=(OSLO, TIME))),
        (_in_dsml("tool_calls").replace('"false">3', '"true">3'), Said("So.", calls=(OSLO, TIME))),
    ],
    "hy3": [
        (
            "So.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
            "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo"
            "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
            "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
            "<tool_call:opensource>get_time<tool_sep:opensource>\n</tool_call:opensource>\n"
            "</tool_calls:opensource>",
            Said("So.", calls=(OSLO, TIME)),
        ),
    ],
    "minicpm5": [
        (
            '<think>\nHm.\n</think>\n\nSo.\n<function name="get_weather"><param name="city">'
            '<![CDATA[Oslo]]></param><param name="days">3</param></function>\n'
            '<function name="get_time"></function>',
            Said("So.", "Hm.", (OSLO, TIME)),
        ),
    ],
    "minimax-m1": [(f"So.\n<tool_calls>\n{_LINES}\n</tool_calls>", Said("So.", calls=BOTH.calls))],
    "minimax-m3": [
        (
            f'<mm:think>Hm.</mm:think>So.{_N}<tool_call>\n{_N}<invoke name="get_weather">{_N}<city>'
            f"Oslo{_N}</city>{_N}<days>3{_N}</days>{_N}</invoke>\n"
            f'{_N}<invoke name="get_time">{_N}</invoke>\n{_N}</tool_call>',
            Said("So.", "Hm.", (OSLO, TIME)),
        ),
        ("</mm:think>It is cold.", Said("It is cold.")),
    ],
    "kimi-k3": [
        (
            "Hm.<|close|>think<|sep|><|open|>response<|sep|>So.<|close|>response<|sep|><|open|>tools"
            '<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
            'type="string"<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key="days" '
            'type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|open|>call '
            'tool="get_time" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
            "<|close|>message<|sep|>",
            Said("So.", "Hm.", BOTH.calls),
        ),
        (
            "Hm.<|close|>think<|sep|><|open|>response<|sep|>1 < 2<|close|>response<|sep|>",
            Said("1 < 2", "Hm."),
        ),
    ],
    "solar-open": [
        (
            "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5"
            '<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Oslo", "days": 3}'
            "<|tool_call:end|><|tool_call:begin|>b1b2c3d4e5<|tool_call:name|>get_time"
            "<|tool_call:args|>{}<|tool_call:end|>",
            Said("", "Hm.", BOTH.calls),
        ),
        ("<|content|>1 < 2", Said("1 < 2")),
    ],
    "nemotron-nano-2": [
        (f"Hm.\n</think>\n<TOOLCALL>{_LIST}</TOOLCALL>", Said("", "Hm.", BOTH.calls))
    ],
    "apertus": [
        (
            'So.<|tools_prefix|>[{"get_weather": {"city": "Oslo", "days": 3}}, {"get_time": {}}]'
            "<|tools_suffix|>",
            Said("So.", calls=(OSLO, TIME)),
        ),
    ],
    "apriel-1.5": [
        (
            "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nSo.\n[END FINAL RESPONSE]",
            Said("So.", "Hm."),
        ),
    ],
    "apriel-1.6": [
        (
            f"Hm.\n[BEGIN FINAL RESPONSE]\nSo.\n<tool_calls>{_LIST}</tool_calls>",
            Said("So.", "Hm.", BOTH.calls),
        ),
    ],
    "gigachat3": [
        (
            "So.<|message_sep|>\n\nfunction call<|role_sep|>\n"
            '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}',
            Said("So.", calls=(OSLO,)),
        ),
        ("It is cold.<|message_sep|>\n\n", Said("It is cold.")),
    ],
    "gigachat3.1": [
        (
            '<|function_call|>{"name": "get_time", "arguments": {}}<|message_sep|>',
            Said(calls=(TIME,)),
        ),
    ],
    "granite3.3": [(f"<|tool_call|>{_LIST}", BOTH)],
    "seed-oss": [
        (
            "<seed:think>Hm.</seed:think>\nSo.\n<seed:tool_call>\n<function=get_weather>\n"
            "<parameter=city>Oslo</parameter>\n<parameter=days>3</parameter>\n</function>\n"
            "</seed:tool_call>",
            Said("So.", "Hm.", (OSLO,)),
        ),
    ],
    "command-r7b": [
        (
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            '"parameters": {"city": "Oslo", "days": 3}},\n    {"tool_call_id": "1", '
            '"tool_name": "get_time", "parameters": {}}\n]<|END_ACTION|>',
            BOTH,
        ),
        ("<|START_RESPONSE|>It is cold.<|END_RESPONSE|>", Said("It is cold.")),
    ],
    "command-a+": [
        (
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Cold.<|END_TEXT|>",
            Said("Cold.", "Hm."),
        ),
    ],
}
ALL_TURNS = TURNS | MORE_TURNS
NAMES_OF_TURNS = [*TURNS, *(pytest.param(name, marks=pytest.mark.zoo) for name in MORE_TURNS)]


def family(name: str) -> Family:
    """Return the family of that name, among all families, served or not."""
    return next(one for one in (*FAMILIES, *MORE) if one.name == name)


def _tools(**more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "description": "d", "parameters": PARAMETERS, **more} for name in NAMES]


def chat(zoo: ZooGateway, **more: Any) -> Said:
    client: Any = zoo.client.chat.completions
    tools = [{"type": "function", "function": one} for one in _tools()]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": ASKED}], "tools": tools}
    message = client.create(**asked, **more).choices[0].message
    calls = [(one.function.name, one.function.arguments) for one in message.tool_calls or ()]
    thought = getattr(message, "reasoning_content", None)
    return _said(message.content, thought, calls)


def chat_streamed(zoo: ZooGateway, **more: Any) -> Said:
    client: Any = zoo.client.chat.completions
    tools = [{"type": "function", "function": one} for one in _tools()]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": ASKED}], "tools": tools}
    text, thought, calls = "", "", list[list[str]]()
    for chunk in client.create(**asked, stream=True, **more):
        for delta in (choice.delta for choice in chunk.choices):
            text += delta.content or ""
            thought += getattr(delta, "reasoning_content", None) or ""
            for one in delta.tool_calls or ():
                if one.function.name:
                    calls.append([one.function.name, ""])
                calls[one.index][1] += one.function.arguments or ""
    return _said(text, thought, [(name, arguments) for name, arguments in calls])


def responses(zoo: ZooGateway) -> Said:
    client: Any = zoo.client.responses
    return _of_items(client.create(model="tiny", input=ASKED, tools=_tools(type="function")))


def responses_streamed(zoo: ZooGateway) -> Said:
    client: Any = zoo.client.responses
    asked = {"model": "tiny", "input": ASKED, "tools": _tools(type="function"), "stream": True}
    done = [one.item for one in client.create(**asked) if one.type == "response.output_item.done"]
    return _of_items(type("Done", (), {"output": done}))


def messages(zoo: ZooGateway) -> Said:
    client: Any = zoo.anthropic.messages
    return _of_blocks(client.create(**_asked()).content)


def messages_streamed(zoo: ZooGateway) -> Said:
    client: Any = zoo.anthropic.messages
    with client.stream(**_asked()) as stream:
        return _of_blocks(stream.get_final_message().content)


def _asked() -> dict[str, Any]:
    tools = [{"name": name, "description": "d", "input_schema": PARAMETERS} for name in NAMES]
    asked = [{"role": "user", "content": ASKED}]
    return {"model": "tiny", "max_tokens": 1000, "messages": asked, "tools": tools}


def _said(text: str | None, thought: str | None, calls: list[tuple[str, str]]) -> Said:
    read = tuple((name, json.loads(arguments)) for name, arguments in calls)
    return Said(text or "", thought or "", read)


def _of_items(response: Any) -> Said:
    texts = [one.content[0].text for one in response.output if one.type == "message"]
    thoughts = [one.content[0].text for one in response.output if one.type == "reasoning"]
    calls = [(one.name, one.arguments) for one in response.output if one.type == "function_call"]
    return _said("".join(texts), "".join(thoughts), calls)


def _of_blocks(blocks: Any) -> Said:
    text = "".join(one.text for one in blocks if one.type == "text")
    thought = "".join(one.thinking for one in blocks if one.type == "thinking")
    return Said(
        text, thought, tuple((one.name, one.input) for one in blocks if one.type == "tool_use")
    )


WAYS: dict[str, Callable[[ZooGateway], Said]] = {
    "chat": chat,
    "chat, streamed": chat_streamed,
    "responses": responses,
    "responses, streamed": responses_streamed,
    "messages": messages,
    "messages, streamed": messages_streamed,
}


@pytest.mark.parametrize("name", NAMES_OF_TURNS)
def test_turns_come_back_right_in_all_dialects(name: str, tmp_path: Path) -> None:
    with zoo_gateway(family(name), tmp_path) as zoo:
        for written, expected in ALL_TURNS[name]:
            zoo.says(written)
            for way, ask in WAYS.items():
                assert ask(zoo) == expected, (way, written)


@pytest.mark.parametrize("name", NAMES_OF_TURNS)
def test_an_answer_that_is_cut_off_shows_no_mark(name: str, tmp_path: Path) -> None:
    marks = [mark.text for mark in family(name).marks()]
    with zoo_gateway(family(name), tmp_path) as zoo:
        [(written, _), *_] = ALL_TURNS[name]
        zoo.says(written)
        for most in range(1, len(zoo.ids(written)), 7):
            client: Any = zoo.client.chat.completions
            tools = [{"type": "function", "function": one} for one in _tools()]
            asked = {"model": "tiny", "messages": [{"role": "user", "content": ASKED}]}
            [choice] = client.create(**asked, tools=tools, max_tokens=most).choices
            assert choice.finish_reason == "length"
            shown = choice.message.content or ""
            assert not any(mark in shown for mark in marks), (most, shown)


@pytest.mark.parametrize(
    ("stop", "shown", "thought"),
    [
        # a special token, which is never part of an answer's text
        ("<|im_start|>", "It is cold.", "Hm."),
        # a control token, which the model writes as a single token
        ("<tool_call>", "It is cold.", "Hm."),
        ("</think>", "", "Hm."),
        ("cold", "It is ", "Hm."),
    ],
)
def test_a_stop_string_may_be_a_marks_text(
    stop: str, shown: str, thought: str, tmp_path: Path
) -> None:
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    with zoo_gateway(family("qwen3"), tmp_path) as zoo:
        zoo.says(f"<think>\nHm.\n</think>\n\nIt is cold.\n{call}<|im_start|>user\nSo?")
        for ask in (chat, chat_streamed):
            said = ask(zoo, stop=[stop])
            assert (said.text.strip(), said.reasoning.strip()) == (shown.strip(), thought)
            assert said.calls == ((TIME,) if stop == "<|im_start|>" else ())
            assert "user" in ask(zoo).text, "without it the answer goes on"
