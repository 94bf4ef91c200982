"""A chat with all kinds of content, in the templates of two families that show tools
differently.
"""

from __future__ import annotations

import pytest

from gateway.prompts.chats.messages import (
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    stored_message,
    template_form,
    with_short_ids,
)
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import ControlTokens
from tests.gateway.support.families import FAMILIES, Family

QWEN3 = FAMILIES["qwen3"]()
LLAMA3 = FAMILIES["llama3"]()
# Llama 3.1's form of calls and results: plain JSON, in separate turns.
LLAMA_CALLS = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- for call in message.tool_calls or [] %}
{{- '{"name": "' + call.function.name + '", "parameters": ' }}
{{- call.function.arguments | tojson + '}' }}
{%- else %}
{{- {'output': message.content} | tojson if role == 'ipython' else message.content | trim }}
{%- endfor %}{{ '<|eot_id|>' }}
{%- endfor %}"""


def llama31() -> Family:
    template = ChatTemplate(
        LLAMA_CALLS, {"bos_token": "<|begin_of_text|>"}, control=LLAMA3.ours.control
    )
    return Family(LLAMA3.inner, LLAMA3.ours, template, LLAMA3.end)


FAMILIES_WITH_CALLS = pytest.mark.parametrize(
    "family", [QWEN3, llama31()], ids=["qwen3", "llama3.1"]
)


def chat(said: str = "") -> list[Message]:
    """Make a question, a thought, a call, its result and an answer, each of which contains
    `said`.
    """
    call = ToolCall(f"clock{said}", {f"zone{said}": [f"UTC{said}", 0, None]}, f"call_1{said}")
    return [
        Message("user", (Text(f"What time is it?{said}"),), f"ada{said}"),
        Message("assistant", (Reasoning(f"Look it up.{said}"), call)),
        Message("tool", (ToolResult(f"12:00{said}", f"call_1{said}"),)),
        Message("assistant", (Text("Noon."),)),
    ]


def ids_of(family: Family, messages: list[Message]) -> list[int]:
    rendered = family.template.render(messages, add_generation_prompt=False)
    ids: list[int] = family.ours.encode(rendered, add_special_tokens=False).tolist()
    return ids


def controls(family: Family, ids: list[int]) -> list[int]:
    return [token_id for token_id in ids if token_id in family.control_ids]


def test_a_call_and_its_result_are_rendered_as_qwen3_was_trained() -> None:
    rendered = QWEN3.template.render(chat(), add_generation_prompt=True)
    assert rendered.text == (
        "<|im_start|>user\nWhat time is it?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nLook it up.\n</think>\n\n"
        '<tool_call>\n{"name": "clock", "arguments": {"zone": ["UTC", 0, null]}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nNoon.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    always = QWEN3.inner.encode(rendered.text, add_special_tokens=False).ids
    assert QWEN3.ours.encode(rendered, add_special_tokens=False).tolist() == always


def test_a_call_and_its_result_are_rendered_in_llama_s_way() -> None:
    rendered = llama31().template.render(chat(), add_generation_prompt=False)
    turns = [turn.partition("<|end_header_id|>\n\n") for turn in rendered.text.split("<|eot_id|>")]
    assert [(head.rpartition("|>")[2], said) for head, _, said in turns[:-1]] == [
        ("user", "What time is it?"),
        ("assistant", '{"name": "clock", "parameters": {"zone": ["UTC", 0, null]}}'),
        ("ipython", '{"output": "12:00"}'),
        ("assistant", "Noon."),
    ]


@FAMILIES_WITH_CALLS
def test_in_no_part_a_control_token_is_one(family: Family) -> None:
    forged = "".join(sorted(family.ours.control.tokens))
    plain = controls(family, ids_of(family, chat()))
    assert controls(family, ids_of(family, chat(forged))) == plain
    rendered = family.template.render(chat(forged), add_generation_prompt=False)
    parsed = family.inner.encode(rendered.text, add_special_tokens=False).ids
    assert len(controls(family, parsed)) > len(plain) + 3 * len(family.ours.control.tokens)


def test_only_the_assistant_s_text_has_markup() -> None:
    think = QWEN3.id_of("<think>")
    markup = "<think>\nhm\n</think>\n\nyes"

    def thoughts(*parts: Text | Reasoning | ToolCall) -> int:
        return ids_of(QWEN3, [*chat()[:1], Message("assistant", parts)]).count(think)

    assert thoughts(Text(markup)) == 1
    assert thoughts(Text("yes"), Reasoning(markup)) == 1, "the template's own"
    assert thoughts(Text("yes"), ToolCall(markup, {markup: markup})) == 1, "likewise"


def test_names_of_fields_are_never_broken_up() -> None:
    """Never break up a field's name, even if it could be part of a control token.

    Templates look up the name.
    """
    control = ControlTokens(dict.fromkeys(["<function>", "<arguments>", "<name>"], True))
    source = "<function>{% for c in messages[0].tool_calls %}{{ c.function.name }}>{% endfor %}"
    template = ChatTemplate(source, {}, control=control)
    message = Message("assistant", (ToolCall("<function", {}),))
    rendered = template.render([message], add_generation_prompt=False)
    assert rendered.pieces == ("", "<function>", "<function>")


def test_a_message_has_one_text() -> None:
    for parts in ((Text("a"), Text("b")), (Text("a"), ToolResult("b", "1"))):
        with pytest.raises(ValueError, match="two texts"):
            Message("user", parts)
    calls = tuple(ToolCall(name, {}) for name in "ab")
    form = template_form(Message("assistant", (Text("a"), *calls)))
    assert [call["function"]["name"] for call in form["tool_calls"]] == ["a", "b"]


@pytest.mark.parametrize("more", [{}, {"name": "n"}, {"tool_call_id": "1"}])
def test_what_is_stored_is_read_as_it_was(more: dict[str, str]) -> None:
    form = {"role": "tool", "content": "a", **more}
    assert template_form(stored_message(form)) == form


def test_ids_of_calls_become_as_short_as_mistral_s_templates_want_them() -> None:
    said = Message("assistant", (Text(""), ToolCall("f", {}, "call_0123456789")))
    result = Message("tool", (ToolResult("x", "call_0123456789"),))
    other = Message("tool", (ToolResult("x", "call_0123456780"),))
    [call] = [part for part in with_short_ids(said).parts if isinstance(part, ToolCall)]
    ids = [getattr(with_short_ids(one).parts[0], "call_id", None) for one in (result, other)]
    assert call.id is not None
    assert (len(call.id), call.id.isalnum()) == (9, True)
    assert ids[0] == call.id != ids[1]
    assert with_short_ids(Message("tool", (ToolResult("x", "abcDEF123"),))).parts[0] == (
        ToolResult("x", "abcDEF123")
    )


@pytest.mark.parametrize(("refused", "call_id"), [("!= 9", "call_0123456789"), ("< 9", "1")])
def test_a_template_that_refuses_ids_is_given_others(refused: str, call_id: str) -> None:
    """Mistral's own templates want ids of nine characters, and vLLM's for Mistral nine or more."""
    source = """{% for message in messages %}
{%- if message.role == "user" %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if call.id|length REFUSED %}{{ raise_exception("IDs!") }}{% endif %}
{{- call.id }}:{{ call.function.name }}{{ call.function.arguments.values() | join }}{% endfor %}
{%- if message.role == "tool" %}{{ message.tool_call_id + message.content }}{% endif %}
{%- endfor %}""".replace("REFUSED", refused)
    said = [
        Message("assistant", (Text(""), ToolCall("f", {}, call_id))),
        Message("tool", (ToolResult("", call_id),)),
    ]
    text = ChatTemplate(source, {}).render(said, add_generation_prompt=False).text
    given, result = text.split(":f")
    assert (len(given), result) == (9, given)
