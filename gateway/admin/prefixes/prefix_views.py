"""Bodies and answers of `/admin/prefixes`, and the reading of a body's messages, tools or text."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field

from gateway.errors import BadRequest
from gateway.http.admin_json import AdminBody, Name
from gateway.http.struct_field import StructField
from gateway.prompts.chats.chat_json import NONE, NULL, SaidMessage, message_of, refuse_unsupported
from gateway.prompts.chats.chat_tools import SentTools, Tools
from gateway.prompts.chats.messages import template_form
from gateway.state.records import EVERYONE, PrefixSource

_GIVEN = {"not": NULL}
_MESSAGES = StructField(list[SaidMessage] | None)
_TOOLS = StructField(Tools)

State = Literal["warm", "warming", "refused", "no engine"]


class NewPrefix(AdminBody):
    """Body of POST /admin/prefixes: messages, tools or both, or else a text.

    The prefix is for all tenants or for one group. Tools alone begin every conversation with these
    tools.
    """

    BEYOND_TYPES: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"required": ["text"], "properties": {"text": _GIVEN, "messages": NULL, "tools": NONE}},
            {"required": ["messages"], "properties": {"messages": _GIVEN, "text": NULL}},
            {"required": ["tools"], "properties": {"tools": {"not": NONE}, "text": NULL}},
        ]
    }

    name: Name
    scope: str = EVERYONE
    messages: Annotated[list[SaidMessage] | None, _MESSAGES] = None
    text: str | None = None
    tools: Annotated[Tools, _TOOLS] = Field(default_factory=msgspec.Raw)


class PrefixView(msgspec.Struct, frozen=True, kw_only=True):
    """A published prefix. `blocks` KV blocks are pinned. The last block may be partly filled."""

    id: str
    name: str
    version: int
    scope: str
    created_at: float
    tokens: int
    blocks: int | None  # None: no engine has reported its block size
    state: State
    reason: str | None


class WholePrefix(PrefixView, frozen=True, kw_only=True):
    """Answer of GET /admin/prefixes/{prefix_id}: the prefix with its published content."""

    source: PrefixSource


class PrefixList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/prefixes: the latest version of each prefix."""

    prefixes: list[PrefixView]


class DeletedPrefix(msgspec.Struct, frozen=True):
    """The withdrawn prefix."""

    id: str


def source_of(body: NewPrefix) -> PrefixSource:
    """Read the content to publish.

    Raises BadRequest if the body has no content, or both a chat and a text.
    """
    tools = _tools_of(body)
    if body.text is not None:
        for name, given in (("messages", body.messages is not None), ("tools", tools)):
            if given:
                raise BadRequest(f"`{name}` cannot be given together with `text`", param=name)
        return PrefixSource(text=body.text)
    if body.messages is None and tools is None:
        raise BadRequest("give `messages`, `tools` or `text`", param="messages")
    messages = body.messages or []
    for place, message in enumerate(messages):
        refuse_unsupported(message, f"messages[{place}].")
    said = [template_form(message_of(message, place)) for place, message in enumerate(messages)]
    return PrefixSource(messages=said, tools=tools)


def _tools_of(body: NewPrefix) -> list[dict[str, Any]] | None:
    sent = SentTools.of(body.tools)
    for one in sent.passed_over:
        raise BadRequest(one.reason, code="unsupported_parameter", param=f"{one.param}.type")
    return [*sent.forms] or None
