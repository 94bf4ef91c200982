"""The conversion of Anthropic's turns into chat messages.

Adjacent turns of one role become one turn. Each result of a call becomes a message. Adjacent texts
of a turn become one text.

Elsewhere: the other fields (`prompts.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from gateway.dialects.anthropic.chats.tools import change_text, found_text
from gateway.dialects.anthropic.content.blocks import (
    Block,
    InputMessage,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from gateway.dialects.anthropic.content.foreign_blocks import ForeignBlock
from gateway.dialects.anthropic.content.hosted_blocks import (
    ContainerUploadBlock,
    Hosted,
    HostedResult,
    HostedUse,
    is_passed_over,
    passed_over,
    result_text,
    shown_calls,
)
from gateway.dialects.anthropic.content.tool_params import ToolParam
from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from gateway.prompts.chats.offered_tools import PassedOver

_FAILED = "Error: "  # begins a failed call's result, since templates have no field for a failure


class _Placed(NamedTuple):
    block: Block
    where: str


def messages_of(
    turns: Sequence[InputMessage], deferred: Mapping[str, ToolParam]
) -> Iterator[Message]:
    """Convert the turns into messages; raise BadRequest for a misplaced block.

    The first turn that refers to a tool of `deferred` describes it.
    """
    names: dict[str, str] = {}
    unshown = dict(deferred)
    for role, blocks in _by_role(turns):
        if role == "assistant":
            called = [one for one, _ in blocks if isinstance(one, ToolUseBlock | HostedUse)]
            names |= {one.id: one.name for one in called}
            yield from _assistants(blocks, names)
        else:
            yield from _others(role, blocks, names, unshown)


def hosted_passed_over(turns: Sequence[InputMessage]) -> Iterator[PassedOver]:
    """Yield notes on the blocks of hosted tools that the model is not shown."""
    for _, blocks in _by_role(turns):
        shown = shown_calls([block for block, _ in blocks])
        for block, where in blocks:
            if isinstance(block, Hosted) and is_passed_over(block, shown):
                yield passed_over(block, where)


def joined(texts: Sequence[TextBlock]) -> str:
    """Join the texts of adjacent content blocks with line ends."""
    return "\n".join(block.text for block in texts)


def _by_role(turns: Sequence[InputMessage]) -> Iterator[tuple[str, list[_Placed]]]:
    said = [(place, turn) for place, turn in enumerate(turns) if turn.content is not None]
    for role, same in groupby(said, key=lambda one: one[1].role):
        yield role, [placed for place, turn in same for placed in _blocks(turn, place)]


def _blocks(turn: InputMessage, place: int) -> Iterator[_Placed]:
    where = f"messages[{place}].content"
    if isinstance(turn.content, str):
        yield _Placed(TextBlock(text=turn.content), where)
    else:
        for number, block in enumerate(turn.content or ()):
            yield _Placed(block, f"{where}[{number}]")


def _assistants(blocks: Sequence[_Placed], names: dict[str, str]) -> Iterator[Message]:
    """Yield the assistant's messages, with the results of hosted tools between them."""
    shown = shown_calls([block for block, _ in blocks])
    kept = [one for one in blocks if not is_passed_over(one.block, shown)]
    if not kept and blocks:
        return
    for part in _parted(kept):
        yield _assistant([one for one in part if not isinstance(one.block, HostedResult)])
        for block, where in part:
            if isinstance(block, HostedResult):
                result = ToolResult(_told(result_text(block), block), block.tool_use_id)
                yield Message("tool", (result,), names.get(block.tool_use_id), where)


def _parted(blocks: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    part: list[_Placed] = []
    for one in blocks:
        ends = part and isinstance(part[-1].block, HostedResult)
        if ends and not isinstance(one.block, HostedResult):
            yield part
            part = []
        part.append(one)
    yield part


def _assistant(blocks: Sequence[_Placed]) -> Message:
    texts, thoughts = [], []
    calls: list[Part] = []
    for block, where in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                pass  # left out: only the server that encrypted the block can read it
            case ToolUseBlock():
                calls.append(ToolCall(block.name, block.input, block.id))
            case HostedUse():
                given = block.input if isinstance(block.input, dict) else {}
                calls.append(ToolCall(block.name, given, block.id))
            case _:
                raise _misplaced(block, where, "an assistant's turn")
    thought = "".join(thoughts)
    reasoning: list[Part] = [Reasoning(thought)] if thought else []
    parts = (*reasoning, Text("".join(texts)), *calls)
    return Message("assistant", parts, param=_param(blocks))


def _others(
    role: str, blocks: Sequence[_Placed], names: dict[str, str], unshown: dict[str, ToolParam]
) -> Iterator[Message]:
    texts: list[TextBlock] = []
    param = _param(blocks)
    for block, where in blocks:
        match block:
            case TextBlock():
                texts.append(block)
            case ContainerUploadBlock() if role == "user":
                pass
            case ToolAdditionBlock() | ToolRemovalBlock() if role == "system":
                told = change_text(block, unshown)
                texts += [] if told is None else [TextBlock(text=told)]
            case ToolResultBlock() if role == "user":
                if texts:
                    yield Message(role, (Text(joined(texts)),), param=param)
                    texts = []
                result = ToolResult(_result(block, where, unshown), block.tool_use_id)
                yield Message("tool", (result,), names.get(block.tool_use_id), where)
            case _:
                raise _misplaced(block, where, f"a turn of the {role}")
    if texts or not blocks:
        yield Message(role, (Text(joined(texts)),), param=param)


def _param(blocks: Sequence[_Placed]) -> str:
    return blocks[0].where if blocks else "messages"


def _result(block: ToolResultBlock, where: str, unshown: dict[str, ToolParam]) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        texts = []
        for place, part in enumerate(content):
            if isinstance(part, ToolReferenceBlock):
                part = TextBlock(text=found_text(part.tool_name, unshown))
            if not isinstance(part, TextBlock):
                path = f"{where}.tool_result.content[{place}]"
                raise _misplaced(part, f"{where}.content[{place}]", "a result", path)
            texts.append(part)
        content = joined(texts)
    return _told(content, block)


def _told(content: str, block: ToolResultBlock | HostedResult) -> str:
    return f"{_FAILED}{content}" if block.is_error else content


def _misplaced(block: Block, param: str, where: str, path: str | None = None) -> BadRequest:
    """Return the error for a block. `path` names the block's place as the API does.

    Claude Code asks again without the image or the document whose path begins the message.
    """
    kind = str(type(block).__struct_config__.tag)
    if isinstance(block, ForeignBlock):
        place = f"{path or param}.{kind}".replace("[", ".").replace("]", "")
        refused = f"{place}: blocks of type `{kind}` are not supported"
        return BadRequest(refused, code="unsupported_parameter", param=param)
    return BadRequest(f"a block of type `{kind}` cannot be in {where}", param=param)
