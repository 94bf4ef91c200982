"""The turns that the model is shown, without expired system messages.

    {"role": "system", "clear_at": "next_user_message", "content": "3,200 tokens are left."}

The client sends a system message with `clear_at` again in each request. The model is shown the
message until a later turn of the user follows. Then the prompt after the message is computed again.

Elsewhere: which messages a turn becomes (`turns.py`).
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import structs

from gateway.dialects.anthropic.content.blocks import InputMessage, TextBlock, ToolUseBlock
from gateway.dialects.anthropic.schema import PromptRequest
from gateway.errors import BadRequest

Wire = TypeVar("Wire", bound=PromptRequest)


def with_shown_turns(wire: Wire) -> Wire:
    """Remove the expired system messages of `wire`; raise BadRequest for wrong fields."""
    for place, turn in enumerate(wire.messages):
        _check(turn, f"messages[{place}]")
    return structs.replace(wire, messages=[*_shown(wire.messages)])


def effort_of(turns: Sequence[InputMessage]) -> str | None:
    """Return the effort that the latest system message after the previous answer sets, or None."""
    *before, last = turns
    prefill = last.role == "assistant"
    for turn in reversed(before if prefill else turns):
        if turn.role == "assistant" and not _calls(turn):
            return None
        if turn.output_config is not None and turn.output_config.effort is not None:
            return turn.output_config.effort
    return None


def _shown(turns: Sequence[InputMessage]) -> Iterator[InputMessage]:
    last = max((at for at, turn in enumerate(turns) if turn.role == "user"), default=0)
    for place, turn in enumerate(turns):
        if turn.clear_at == "next_user_message" and place < last:
            yield structs.replace(turn, content=_without_text(turn))
        else:
            yield turn


def _without_text(turn: InputMessage) -> list[object] | None:
    if not isinstance(turn.content, list):
        return None
    return [block for block in turn.content if not isinstance(block, TextBlock)] or None


def _check(turn: InputMessage, where: str) -> None:
    is_system = turn.role == "system"
    for name in ("clear_at", "output_config"):
        if getattr(turn, name) is not None and not is_system:
            raise BadRequest(f"only a system message has `{name}`", param=f"{where}.{name}")
    if turn.content is None and turn.output_config is None:
        raise BadRequest(
            f"`{where}.content` is missing",
            code="missing_required_parameter",
            param=f"{where}.content",
        )


def _calls(turn: InputMessage) -> bool:
    return isinstance(turn.content, list) and any(
        isinstance(block, ToolUseBlock) for block in turn.content
    )
