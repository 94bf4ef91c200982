"""The chats that a template does not take, in words for an operator."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from gateway.prompts.chats.template_variables import PRESERVE_THINKING
from gateway.prompts.templates.fitted import FittedTemplate, Variables


class Limit(Struct, frozen=True):
    """A kind of message or turn that a template does not take, and the workaround."""

    cannot: str
    instead: str


_OF_TRAITS: tuple[tuple[str, Any, Limit], ...] = (
    ("leading_system", "one", Limit("several system messages at the beginning", "joined")),
    (
        "leading_system",
        "none",
        Limit("system messages at the beginning", "put before the text of the user's first turn"),
    ),
    (
        "later_system",
        False,
        Limit("system messages inside the conversation", "rendered as a user's turn"),
    ),
    ("system_alone", False, Limit("system messages alone", "followed by an empty user's turn")),
    ("users_in_a_row", False, Limit("user's turns in a row", "joined")),
    ("assistants_in_a_row", False, Limit("assistant's turns in a row", "joined")),
    (
        "assistant_first",
        False,
        Limit("chats that the assistant begins", "begun with an empty user's turn"),
    ),
    (
        "calls_first",
        False,
        Limit("calls before a user's turn", "preceded by an empty user's turn"),
    ),
    ("empty_answers", False, Limit("assistant's turns that say nothing", "left out")),
    ("calls", "one", Limit("several calls in a turn", "shown as turns of one call each")),
    ("calls", "text", Limit("calls", "shown as text of the assistant's turn")),
    ("text_beside_calls", "apart", Limit("a text beside calls", "shown as a turn before them")),
    (
        "text_beside_calls",
        "thought",
        Limit(
            "a text beside calls",
            "shown as the end of the thought; once the turn is over, as a turn before them",
        ),
    ),
    ("tools_need_system", True, Limit("tools without a system message", "given an empty one")),
    (
        "tools_in",
        "system",
        Limit("tools as a variable", "given as the JSON of their functions, in a system message"),
    ),
    ("tools_in", "xml_tools", Limit("tools as the variable `tools`", "given as `xml_tools`")),
    ("results", False, Limit("results of calls", "rendered as a user's turn")),
    ("user_after_result", False, Limit("a user's turn after a result", "joined to the result")),
    ("short_ids", True, Limit("ids of calls but nine letters or digits", "replaced by such")),
    ("numbered_ids", "chat", Limit("ids of calls without a name and number", "replaced by such")),
    ("numbered_ids", "turn", Limit("ids of calls without a name and number", "replaced by such")),
    ("completed_tools", "described", Limit("tools without a description", "given an empty one")),
    (
        "completed_tools",
        "whole",
        Limit("tools without a description or parameters", "given empty ones"),
    ),
    (
        "completed_tools",
        "deep",
        Limit(
            "parameters without a description, or with the type null",
            "given an empty description, and shown without null",
        ),
    ),
)
_TOLD_TOOLS = Limit("tools", "shown in a message of the system")
_NO_TOOLS = Limit("tools", "refused, unless none may be called; --chat-template names a template")
_NO_THOUGHTS = Limit("thinking that is sent back", "dropped")
_NO_EARLIER_THOUGHTS = Limit("thinking of earlier turns", "dropped")
_KEPT_THOUGHTS = Limit("thinking of earlier turns", "kept where the turn was generated here")


def limits_of(template: FittedTemplate, variables: Variables) -> list[Limit]:
    """List the kinds of messages that a template does not take in chats with these variables."""
    traits = template.traits
    known = [limit for name, value, limit in _OF_TRAITS if getattr(traits, name) == value]
    if not traits.shows_tools:
        known.append(_TOLD_TOOLS if template.shows_tools else _NO_TOOLS)
    return [*known, *_dropped(template, variables)]


def _dropped(template: FittedTemplate, variables: Variables) -> Iterator[Limit]:
    if template.shows_thoughts("u ar u", variables):
        return
    if variables.get(PRESERVE_THINKING) is True:
        yield _KEPT_THOUGHTS
        return
    now = template.shows_thoughts("u arc t", variables)
    yield _NO_EARLIER_THOUGHTS if now else _NO_THOUGHTS
