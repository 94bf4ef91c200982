"""Templates that number calls show the ids that their models would write, whichever ids clients
send.
"""

from __future__ import annotations

import pytest

from gateway.prompts.chats.messages import Message, Text, ToolCall, ToolResult
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.turn_formats.choose import tool_format
from tests.gateway.prompts.templates.chats import TOOLS
from tests.zoo.more_families import MORE

_CALL = (
    "<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
    "<|tool_call_begin|>ID<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
    "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
)
# Both templates are written for this test: one names calls as Kimi K2 does, one as other families
# do.
_TEMPLATE = (
    "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.name or m.role }}|>"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}" + _CALL + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_OF_TURN = "functions.{{ c.function.name }}:{{ loop.index0 }}"


def chat() -> list[Message]:
    """Make two assistant turns with calls; the first turn has two calls."""
    first = [ToolCall("get_time", {}, f"old-{one}") for one in "ab"]
    return [
        Message("user", (Text("Hi."),)),
        Message("assistant", tuple(first)),
        *(Message("tool", (ToolResult("One.", f"old-{one}"),)) for one in "ab"),
        Message("assistant", (ToolCall("get_day", {}, "old-c"),)),
        Message("tool", (ToolResult("Two.", "old-c"),)),
        Message("tool", (ToolResult("Three.", "of-nobody"),)),
    ]


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        ("{{ c.id }}", ["get_time:0", "get_time:1", "get_day:2"]),
        (_OF_TURN, ["get_time:0", "get_time:1", "get_day:0"]),
    ],
)
def test_calls_and_results_have_the_models_ids(written: str, ids: list[str]) -> None:
    template = ChatTemplate(_TEMPLATE.replace("ID", written), {})
    text = template.render(chat(), add_generation_prompt=True, tools=TOOLS).text
    for one in ids:
        assert f"<|tool_call_begin|>functions.{one}<|tool_call_argument" in text
        assert f"## Return of functions.{one}\n" in text
    assert "old-a" not in text
    assert "of-nobody" in text, "what names no call stays as it is"
    found = tool_format(template.shown)
    assert found is not None
    assert found.name == "kimi_k2"


def test_ids_beside_names_stay_as_they_were_sent() -> None:
    template = ChatTemplate(_TEMPLATE.replace("ID", "{{ c.function.name }} {{ c.id }}"), {})
    text = template.render(chat(), add_generation_prompt=True, tools=TOOLS).text
    assert text.count("old-a") == 2
    assert "functions." not in text


@pytest.mark.zoo
def test_kimis_first_template_counts_in_each_turn() -> None:
    source = next(one for one in MORE if one.name == "kimi-k2").template()
    text = ChatTemplate(source, {}).render(chat(), add_generation_prompt=True, tools=TOOLS).text
    for one in ("get_time:0", "get_time:1", "get_day:0"):
        assert text.count(f"functions.{one}") == 2


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["kimi-k2-instruct", "kimi-k2-thinking"])
def test_llama_cpps_templates_for_kimi_keep_a_list_of_ids(name: str) -> None:
    source = next(one for one in MORE if one.name == name).template()
    assert ".append(" in source
    text = ChatTemplate(source, {}).render(chat(), add_generation_prompt=True, tools=TOOLS).text
    for one in ("get_time:0", "get_time:1", "get_day:2"):
        assert f"<|tool_call_begin|>functions.{one}<|tool_call_argument" in text
        assert f"## Return of functions.{one}\n" in text
