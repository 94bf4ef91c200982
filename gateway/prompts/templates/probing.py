"""The search for a template's traits, by rendering small chats of all kinds.

A question has answers, which are values of traits, and chats that tell the answers apart. For each
answer, every chat is fitted to these values and rendered. The answer with which most chats are
shown whole is chosen, or the first of equally good answers. Later questions build on earlier
answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from msgspec.structs import replace

from gateway.prompts.chats.forms import Tool, given_of
from gateway.prompts.chats.messages import Message, Part, ToolCall, ToolResult
from gateway.prompts.chats.traits import ReasoningField, TemplateTraits
from gateway.prompts.templates.compiled import CannotRender, CompiledTemplate
from gateway.prompts.templates.fitting import fitted
from gateway.prompts.templates.shapes import (
    ONE_TOOL,
    TurnKind,
    is_whole,
    shape_of,
    shows_tool,
    thoughts_of,
)

_ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
# words of the error that Mistral's templates raise for long call ids
_NO_LONG_IDS = "with length 9"
_WORDS = {one: {"type": one} for one in ("string", "object", "array")}
_NULL = {"one": {"type": ["string", "null"]}, "none": {"type": "null"}}
_BARE: tuple[dict[str, Any], ...] = (
    *({}, {"parameters": None}, {"description": None}),
    *(
        {"description": ".", "parameters": {"type": "object", **more}}
        for more in ({}, {"properties": _WORDS}, {"properties": _NULL})
    ),
)
_BARE_TOOLS: tuple[Tool, ...] = tuple(
    {"type": "function", "function": {"name": "look_up", **more}} for more in _BARE
)

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Question:
    """A question about traits, with its chats.

    A chat is written as a string of roles (s, u, a and t, as in `_ROLES`). More letters may follow
    the assistant's: `c` for each call, `x` for a text beside calls, `r` for reasoning, `0` for an
    empty message. Results answer the calls before them, in order. Chats with calls, and chats that
    begin with `+`, have tools.
    """

    answers: tuple[Answer, ...]
    chats: tuple[str, ...]


_QUESTIONS = (
    _Question(({}, {"no_tools": "list"}), ("u",)),
    _Question(({}, {"content_parts": True}), ("u", "u a u")),
    _Question(
        ({}, {"leading_system": "one"}, {"leading_system": "none"}),
        ("s u", "s s u", "s s s u", "s u a u", "+s u", "+s s u"),
    ),
    _Question(({}, {"users_in_a_row": False}), ("u u", "u u u a u u")),
    _Question(({}, {"assistants_in_a_row": False}), ("u a a", "u a a u")),
    _Question(({}, {"assistant_first": False}), ("a u", "s a u")),
    _Question(({}, {"empty_answers": False}), ("u a0 u", "a0 u")),
    _Question(({}, {"later_system": False}), ("u s", "u s u", "u a s", "u a s u", "s u a s u")),
    _Question(({}, {"system_alone": False}), ("s", "s s", "+s")),
    _Question(
        (
            {},
            {"null_content": True},
            {"arguments": "text"},
            {"arguments": "text", "null_content": True},
        ),
        ("u ac t", "u ac t a u", "u ac t ac t"),
    ),
    _Question(
        ({}, {"calls": "one"}, {"calls": "text"}, {"calls": "text", "results": False}),
        ("u ac t", "u acc t t", "u acc t t a u", "u ac t ac t a u"),
    ),
    _Question(({}, {"calls_first": False}), ("a u", "ac t", "s ac t", "a ac t")),
    _Question(({}, {"user_after_result": False}), ("u ac t u", "u acc t t u a u")),
    _Question(({}, {"later_system": False}), ("u ac t s", "u ac t s a u")),
    _Question(
        tuple({"reasoning": field} for field in get_args(ReasoningField)),
        ("u arc t", "u arc t arc t", "u ar", "u ar u"),
    ),
    _Question(
        ({}, {"text_beside_calls": "apart"}, {"text_beside_calls": "thought"}),
        ("u acx t", "u arcx t", "u acx t a u", "u acx t acx t"),
    ),
)

_SHOWING_TOOLS = (
    TemplateTraits(),
    TemplateTraits(tools_need_system=True),
    TemplateTraits(tools_in="xml_tools"),
    TemplateTraits(tools_need_system=True, tools_in="system"),
)


def find_traits(template: CompiledTemplate) -> TemplateTraits:
    """Find the traits of `template`."""
    probe = _Probe(template)
    showing = next(filter(probe.shows_one_tool, _SHOWING_TOOLS), None)
    traits = showing or TemplateTraits(shows_tools=False)
    for question in _QUESTIONS:
        tried = [replace(traits, **answer) for answer in question.answers]
        traits = probe.best_of(tried, question.chats)
    completed = get_args(get_type_hints(TemplateTraits)["completed_tools"])
    tried = [replace(traits, completed_tools=one) for one in completed]
    traits = next((one for one in tried if probe.shows_tools(one)), traits)
    traits = replace(traits, numbered_ids=probe.numbers_of_calls(traits))
    short = _NO_LONG_IDS in template.source or not probe.takes_any_ids(traits)
    return replace(traits, short_ids=short, shows_call_ids=probe.shows_ids(traits))


class _Probe:
    def __init__(self, template: CompiledTemplate) -> None:
        self._template = template

    def best_of(self, tried: Sequence[TemplateTraits], chats: Sequence[str]) -> TemplateTraits:
        """Return the traits that show most chats whole, or the first of equally good traits."""
        most, best = -1, tried[0]
        for traits in tried:
            count = sum(self.shows(chat, traits) for chat in chats)
            if count > most:
                most, best = count, traits
            if most == len(chats):  # no answer can be better; usually the first answer shows all
                break
        return best

    def shows(self, chat: str, traits: TemplateTraits) -> bool:
        """Return whether all of a chat is shown, once and in order, thoughts included."""
        said = chat_of(chat.removeprefix("+"))
        tools = ONE_TOOL if chat.startswith("+") or "c" in chat else None
        text = self._text(said, traits, tools)
        if not is_whole(text, fitted(said, traits)):
            return False
        if tools and traits.shows_tools and not shows_tool(text):
            return False
        return all(text.count(thought) == 1 for thought in thoughts_of(said))

    def shows_one_tool(self, traits: TemplateTraits) -> bool:
        forms = (traits, replace(traits, content_parts=True))
        return any(shows_tool(self._text(chat_of("u"), one, ONE_TOOL)) for one in forms)

    def shows_tools(self, traits: TemplateTraits) -> bool:
        said = chat_of("u")
        return all("look_up" in self._text(said, traits, [tool]) for tool in _BARE_TOOLS)

    def takes_any_ids(self, traits: TemplateTraits) -> bool:
        """Return whether a call's id may be of any length, if calls are shown."""
        said = chat_of("u ac t")
        if not is_whole(self._text(said, traits, ONE_TOOL), fitted(said, traits)):
            return True
        changed = ([_with_ids(one, made) for one in said] for made in ("call_{}".format, _last_of))
        texts = (self._text(one, traits, ONE_TOOL) for one in changed)
        return all(is_whole(text, fitted(said, traits)) for text in texts)

    def shows_ids(self, traits: TemplateTraits) -> bool:
        said = chat_of("u acc t t")
        text = self._text(said, traits, ONE_TOOL)
        ids = [part.id for message in said for part in message.parts if isinstance(part, ToolCall)]
        return all(text.count(one or "") > 1 for one in ids)

    def numbers_of_calls(self, traits: TemplateTraits) -> Literal["no", "chat", "turn"]:
        """Return whether call ids contain numbers, as in Kimi's templates.

        These templates write the ids themselves, or show only a call's id and arguments.
        """
        name = ONE_TOOL[0]["function"]["name"]
        asked, called = (self._text(chat_of(one), traits, ONE_TOOL) for one in ("u", "u ac"))
        writes_ids = f"functions.{name}:0" in called
        is_named = called.count(name) > asked.count(name)
        if not writes_ids and (is_named or not is_whole(called, fitted(chat_of("u ac"), traits))):
            return "no"
        numbered = replace(traits, numbered_ids="chat")
        later = self._text(chat_of("u ac t ac t"), numbered, ONE_TOOL)
        shown = later.count(f"functions.{name}:1")
        return "chat" if shown > 1 or not writes_ids else "turn"

    def _text(
        self, messages: Sequence[Message], traits: TemplateTraits, tools: Sequence[Tool] | None
    ) -> str:
        asks = messages[-1].role != "assistant"
        given = given_of(fitted(messages, traits), tools, traits, add_generation_prompt=asks)
        try:
            return self._template.render(given)
        except CannotRender:
            return ""


def _last_of(call_id: str) -> str:
    return call_id[-1:]


def _with_ids(message: Message, made: Callable[[str], str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCall():
                part = replace(part, id=made(part.id or ""))
            case ToolResult():
                part = replace(part, call_id=made(part.call_id))
        parts.append(part)
    return replace(message, parts=tuple(parts))


def chat_of(spelled: str) -> list[Message]:
    """Make the chat that a string of a `_Question` describes."""
    kinds, returned = list[TurnKind](), 0
    for word in spelled.split():
        role, calls = _ROLES[word[0]], word.count("c")
        text = "." if not calls or "x" in word else None
        text = "" if "0" in word else text
        call = returned if role == "tool" else None
        returned = returned + 1 if role == "tool" else 0
        kinds.append(TurnKind(role, "r" in word, text, calls, call))
    return shape_of(kinds)
