"""Anthropic's field `diagnostics` on cache misses, and the extension `ratoon` beside it.

    diagnostics: {previous_message_id: "msg_..."}     in a request
    diagnostics: {cache_miss_reason: {...}} | null    in the message, in streams in `message_start`

`null` means that the prompt missed nothing, or that the request names no previous message. If
Anthropic has no name for a reason, the reason is `unavailable`. `ratoon` names every reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from gateway.diagnosis.cache_miss import CacheMiss
from gateway.diagnosis.comparison import Explain
from gateway.diagnosis.parts import PartKind, PromptPart
from gateway.diagnosis.volatile import without_billing_header
from gateway.dialects.anthropic.content.blocks import (
    Block,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.dialects.anthropic.replies import CacheMissReason, Diagnostics
from gateway.dialects.anthropic.schema import MessagesRequest
from gateway.dialects.explaining import RatoonOptions, RatoonReply, ratoon_reply
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.requests.request_usage import Usage


@dataclass(frozen=True, slots=True)
class CacheQuestions:
    """The questions that a request asks about its cache misses."""

    wants_diagnostics: bool = False
    has_previous: bool = False
    wants_ratoon: bool = False

    @classmethod
    def of(cls, wire: MessagesRequest) -> CacheQuestions:
        """Read the questions that `wire` asks about the cache."""
        asked, own = wire.diagnostics, wire.ratoon
        named = asked is not None and asked.previous_message_id is not None
        return cls(asked is not None, named, _is_told(own))

    def diagnostics(self, usage: Usage) -> Diagnostics | UnsetType | None:
        """Write the answer's field `diagnostics`."""
        if not self.wants_diagnostics:
            return UNSET
        miss = usage.cache_miss
        return None if miss is None or not self.has_previous else _diagnostics(miss)

    def ratoon(self, usage: Usage, ignored: tuple[PassedOver, ...]) -> RatoonReply | UnsetType:
        """Write the answer's field `ratoon`."""
        return ratoon_reply(usage if self.wants_ratoon else None, ignored)


def _is_told(own: RatoonOptions | None) -> bool:
    return own is not None and (own.explain is True or own.modules is not None)


def explain_of_messages(wire: MessagesRequest) -> Explain | None:
    """Return the comparison of prompts that `wire` asks for, or None."""
    own = wire.ratoon
    wants_all = own is not None and own.explain is True
    named = own.previous_id if own is not None and wants_all else None
    if named is None and wire.diagnostics is not None:
        named = wire.diagnostics.previous_message_id
    if named is None and not wants_all:
        return None
    return Explain(named, tuple(_parts(wire)))


def _diagnostics(miss: CacheMiss) -> Diagnostics | None:
    match miss.reason:
        case "none":
            return None
        case "model_changed" | "system_changed" | "tools_changed" | "messages_changed" as kind:
            return Diagnostics(CacheMissReason(kind, miss.lost_tokens or 0))
        case "previous_not_found":
            return Diagnostics(CacheMissReason("previous_message_not_found"))
        case _:
            return Diagnostics(CacheMissReason("unavailable"))


def _parts(wire: MessagesRequest) -> Iterator[PromptPart]:
    for place, tool in enumerate(wire.tools or ()):
        yield PromptPart(f"tools[{place}]", "tools", tool.name or "")
    if isinstance(wire.system, str):
        yield PromptPart("system", "system", without_billing_header(wire.system))
    else:
        for place, block in enumerate(wire.system or ()):
            said = without_billing_header(block.text)
            yield PromptPart(f"system[{place}]", "system", said)
    for place, turn in enumerate(wire.messages):
        yield from _turn_parts(turn, f"messages[{place}]")


def _turn_parts(turn: InputMessage, where: str) -> Iterator[PromptPart]:
    kind: PartKind = "system" if turn.role == "system" else "messages"
    if isinstance(turn.content, str):
        yield PromptPart(where, kind, turn.content)
        return
    for number, block in enumerate(turn.content or ()):
        yield PromptPart(f"{where}.content[{number}]", kind, _text(block))


def _text(block: Block) -> str:
    match block:
        case TextBlock():
            return block.text
        case ThinkingBlock():
            return block.thinking
        case ToolUseBlock():
            return block.name
        case ToolResultBlock(content=str(text)):
            return text
        case ToolResultBlock(content=list(several)):
            return next((one.text for one in several if isinstance(one, TextBlock)), "")
        case _:
            return ""
