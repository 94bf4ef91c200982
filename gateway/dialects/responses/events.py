"""The events of a streamed response, each named by its `type` and numbered without a gap.

Elsewhere: their order (`output.py`, `rendering.py`).
"""

import msgspec
from msgspec import Struct

from gateway.dialects.responses.replies import OutputItem, OutputPart, ResponseReply


class _Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int


class _OfResponse(_Event, frozen=True, kw_only=True):
    response: ResponseReply


class ResponseCreated(_OfResponse, frozen=True, kw_only=True, tag="response.created"):
    """The first event of a stream."""


class ResponseInProgress(_OfResponse, frozen=True, kw_only=True, tag="response.in_progress"):
    """The second event of a stream."""


class ResponseCompleted(_OfResponse, frozen=True, kw_only=True, tag="response.completed"):
    """The last event of a response that ended by itself."""


class ResponseIncomplete(_OfResponse, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last event of a response that ended early."""


class ResponseFailed(_OfResponse, frozen=True, kw_only=True, tag="response.failed"):
    """The last event of a response that failed."""


class _OfItem(_Event, frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(_OfItem, frozen=True, kw_only=True, tag="response.output_item.added"):
    """The event that begins an item."""


class ItemDone(_OfItem, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The event that completes an item."""


class _InItem(_Event, frozen=True, kw_only=True):
    output_index: int
    item_id: str


class _OfPart(_InItem, frozen=True, kw_only=True):
    content_index: int = 0
    part: OutputPart


class PartAdded(_OfPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The event that begins a text part."""


class PartDone(_OfPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The event that completes a text part."""


class OutputTextDelta(_InItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A delta of the text."""

    content_index: int = 0
    delta: str
    logprobs: tuple[()] = ()


class TextDone(_InItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The event with the whole text."""

    content_index: int = 0
    text: str
    logprobs: tuple[()] = ()


class ReasoningDelta(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A delta of the reasoning."""

    content_index: int = 0
    delta: str


class ReasoningDone(_InItem, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The event with the whole reasoning."""

    content_index: int = 0
    text: str


class ArgumentsDelta(
    _InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """A delta of a call's arguments."""

    delta: str


class ArgumentsDone(
    _InItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The event with a call's whole arguments."""

    name: str
    arguments: str


class CustomInputDelta(
    _InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"
):
    """A delta of a custom tool call's text."""

    delta: str


class CustomInputDone(
    _InItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"
):
    """The event with a custom tool call's whole text."""

    input: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)


def event(value: ResponseEvent) -> bytes:
    """Write one server-sent event, named by its `type`."""
    name = str(type(value).__struct_config__.tag)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
