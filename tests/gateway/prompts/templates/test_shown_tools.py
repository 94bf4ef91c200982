"""With published templates, offered tools are in the prompt, or the request is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.errors import BadRequest
from gateway.prompts.chats.template_variables import ChatSettings
from gateway.prompts.model_chats import read_chats
from gateway.prompts.templates.chat_template import ChatTemplate
from tests.doubles.gateway.served import MODEL
from tests.examples import in_the_zoo
from tests.gateway.prompts.templates.chats import CALLING, PLAIN, TOOLS, WORD, messages, words
from tests.zoo.families import FAMILIES, family
from tests.zoo.family import Family
from tests.zoo.gateways import zoo_gateway
from tests.zoo.more_families import MORE

ASKED: Any = [{"role": "user", "content": "What time is it?"}]
OFFERED: Any = TOOLS
# families whose templates show no tools
TOLD = [family(name) for name in ("r1-distill-llama", "deepseek-v3", "deepseek-v3.1")]
CALLED = [family(name) for name in ("r1-distill-qwen", "qwen3", "llama3.1", "mistral-nemo")]
NEVER = [family(name) for name in ("gemma3", "phi4", "llama3")]


@pytest.mark.parametrize("one", [one for one in FAMILIES if one.tools], ids=str)
def test_of_a_model_that_calls_every_chat_shows_the_tools(one: Family, tmp_path: Path) -> None:
    template = read_chats(one.write(tmp_path), ChatSettings()).template
    assert template is not None
    for spelled in (*PLAIN, *CALLING):
        chat = messages(spelled)
        template.check(chat, add_generation_prompt=True, tools=TOOLS)
        prompt = template.render(chat, add_generation_prompt=True, tools=TOOLS).text
        assert all(tool["function"]["description"] in prompt for tool in TOOLS), spelled
        assert sorted(WORD.findall(prompt)) == sorted(words(spelled)), spelled


# A tool as OpenAI's strict mode wants it, and a tool without arguments, as MCP servers list it.
OPTIONAL = {"type": ["string", "null"], "enum": ["C", "F", None]}
STRICT: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"unit": OPTIONAL, "none": {"type": "null"}, "many": {"type": "array"}},
        "required": ["unit", "none", "many"],
        "additionalProperties": False,
    },
    {"type": "object"},
    {
        "type": "object",
        "properties": {
            "any": True,
            "many": {"type": "array", "items": True},
            "more": {"type": "object", "additionalProperties": True},
            "word": {"type": "string", "description": None},
        },
        "required": None,
    },
]
ALL_CALLING = [one for one in (*FAMILIES, *MORE) if one.tools]


@pytest.mark.parametrize("one", [*ALL_CALLING[:30:3], *in_the_zoo(*ALL_CALLING)], ids=str)
def test_unusual_schemas_are_shown(one: Family, tmp_path: Path) -> None:
    template = read_chats(one.write(tmp_path), ChatSettings()).template
    assert template is not None
    for parameters in STRICT:
        function = {"name": "look_up", "description": "Looks up.", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        text = template.render(messages("u"), add_generation_prompt=True, tools=tools).text
        assert "Looks up." in text


@pytest.mark.parametrize("one", TOLD, ids=str)
def test_what_tells_of_tools_has_marks_and_what_clients_send_has_none(
    one: Family, tmp_path: Path
) -> None:
    mark = next(mark.text for mark in one.marks() if "call" in mark.text and "begin" in mark.text)
    described = {"name": "get", "description": f"It writes {mark}.", "parameters": {}}
    tools: Any = [{"type": "function", "function": described}]
    with zoo_gateway(one, tmp_path) as zoo:
        chat: Any = [{"role": "system", "content": "Be brief."}, *ASKED]
        zoo.client.chat.completions.create(model=MODEL, messages=chat, tools=tools)
        prompt = zoo.prompt()
        ids = memoryview(zoo.engine.requests[-1].token_ids).cast("i").tolist()
        [mark_id] = zoo.ids(mark)
    assert prompt.index("Be brief.") < prompt.index("## Tools") < prompt.index("What time")
    assert prompt.count(mark) == ids.count(mark_id) + 1


@pytest.mark.parametrize("one", [*TOLD, *NEVER, family("qwen3")], ids=str)
def test_the_prompt_is_the_same_whichever_may_be_called(one: Family, tmp_path: Path) -> None:
    """Send each `tool_choice` to models that call tools: the prompt stays the same. Other models
    accept only `none`.
    """
    with zoo_gateway(one, tmp_path) as zoo:

        def prompt(choice: Any) -> str:
            zoo.client.chat.completions.create(
                model=MODEL, messages=ASKED, tools=OFFERED, tool_choice=choice
            )
            return zoo.prompt()

        without = prompt("none")
        assert ("get_time" in without) == bool(one.tools)
        if one.tools:
            assert prompt("auto") == without
            return
        with pytest.raises(openai.BadRequestError) as refused:
            prompt("auto")
        assert refused.value.param == "tools"


def test_a_format_that_the_operator_names_is_told_of_or_refused(tmp_path: Path) -> None:
    for name, is_told in (("hermes", True), ("pythonic", False)):
        with zoo_gateway(family("gemma3"), tmp_path / name, tool_format=name) as zoo:
            chats = zoo.client.chat.completions
            if is_told:
                chats.create(model=MODEL, messages=ASKED, tools=OFFERED)
                assert "<tools>" in zoo.prompt()
                continue
            with pytest.raises(openai.BadRequestError, match="--chat-template") as refused:
                chats.create(model=MODEL, messages=ASKED, tools=OFFERED)
            assert refused.value.param == "tools"
            chats.create(model=MODEL, messages=ASKED, tools=OFFERED, tool_choice="none")


@pytest.mark.parametrize("spelled", ["u", "s u", "u ac t a u"])
def test_tools_are_given_where_the_template_reads_them(spelled: str) -> None:
    """Use a template that reads `xml_tools`, as SmolLM3's does, and Phi-4-mini's, which reads a
    field of the system message.
    """
    source = "{% for one in xml_tools or [] %}{{ one | tojson }}{% endfor %}"
    source += "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for template in (ChatTemplate(source, {}), ChatTemplate(family("phi4-mini").template(), {})):
        prompt = template.render(messages(spelled), add_generation_prompt=True, tools=TOOLS).text
        names = [tool["function"]["name"] for tool in TOOLS]
        assert all(f'"name": "{name}"' in prompt for name in names)
        without = template.render(messages(spelled), add_generation_prompt=True).text
        assert "description" not in without


@pytest.mark.parametrize("name", ["qwen2.5", "phi4-mini"])
def test_tools_alone_are_a_cached_content_of_gemini_s(name: str, tmp_path: Path) -> None:
    declared = [{"name": "get_time", "description": "Tells the time."}]
    wanted = {"model": f"models/{MODEL}", "tools": [{"functionDeclarations": declared}]}
    with zoo_gateway(family(name), tmp_path) as zoo:
        at = f"{zoo.served.url}/v1beta/cachedContents"
        made = httpx.post(at, json=wanted, headers={"x-goog-api-key": zoo.served.key})
        assert made.status_code == 200, made.text
        assert "Tells the time." in zoo.prompt()
        [mark] = zoo.engine.requests[-1].marks
        assert mark.num_tokens > 0


@pytest.mark.parametrize("name", ["qwen3.5", "llama3.1"])
def test_a_user_s_turn_is_added_before_first_calls_but_not_before_a_greeting(name: str) -> None:
    template = ChatTemplate(family(name).template(), {})

    def turns(spelled: str) -> int:
        text = template.render(messages(spelled), add_generation_prompt=True).text
        return text.count("<|im_start|>user") + text.count("<|start_header_id|>user")

    assert (turns("a u"), turns("ac t")) == (1, turns("u ac t"))


def test_a_template_of_the_operators_is_used_in_place_of_the_models(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(family("qwen2.5").template())
    for template in (None, str(own)):
        with zoo_gateway(
            family("phi4"), tmp_path / str(template is None), chat_template=template
        ) as zoo:
            choice: Any = "none" if template is None else "auto"
            zoo.client.chat.completions.create(
                model=MODEL, messages=ASKED, tools=OFFERED, tool_choice=choice
            )
            assert ("<tools>" in zoo.prompt()) == (template is not None)


def test_a_chat_in_which_a_template_shows_no_tools_is_refused() -> None:
    """Refuse tools in a chat without a system message, since this template shows tools only
    beside a system message.
    """
    source = (
        "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'system' and tools and messages|length < 3 %}{{ tools }}{% endif %}"
        "{% endfor %}{% if tools and messages|length == 1 %}{{ tools }}{% endif %}"
    )
    template = ChatTemplate(source, {})
    for spelled in ("u", "s u"):
        template.check(messages(spelled), add_generation_prompt=True, tools=TOOLS)
    with pytest.raises(BadRequest) as refused:
        template.check(messages("u a u"), add_generation_prompt=True, tools=TOOLS)
    assert refused.value.param == "tools"
    template.check(messages("u a u"), add_generation_prompt=True)
