"""The items of an answer while they are generated. Only one item at a time is open.

Elsewhere: the response around them (`rendering.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from msgspec import UNSET
from msgspec.structs import replace

from gateway.dialects.finished_choice import FinishedCall
from gateway.dialects.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    ItemAdded,
    ItemDone,
    OutputTextDelta,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    ResponseEvent,
    TextDone,
)
from gateway.dialects.responses.input_items.client_tools import asked_of
from gateway.dialects.responses.input_items.items import item_id
from gateway.dialects.responses.input_items.tool_entries import CALL_ITEMS, SEARCH, Called
from gateway.dialects.responses.replies import (
    ItemStatus,
    OutputCall,
    OutputClientCall,
    OutputCustomCall,
    OutputItem,
    OutputLocalShell,
    OutputMessage,
    OutputPatch,
    OutputReasoning,
    OutputSearchCall,
    OutputShell,
    OutputText,
    ReasoningText,
)
from gateway.prompts.chats.offered_tools import FreeInput
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, ReasoningPiece, TextPiece


class _Place(TypedDict):
    sequence_number: int
    output_index: int
    item_id: str


class _Call(TypedDict):
    id: str
    status: ItemStatus
    call_id: str


@dataclass(slots=True)
class Output:
    """The items of one answer, and the events that report them."""

    request_id: str
    first: int  # index of the first output item: the number of input items
    numbers: Iterator[int]
    # the form of each tool's calls, by the name that the model knows
    calls: Mapping[str, Called] = field(default_factory=dict)
    items: list[OutputItem] = field(default_factory=list)
    _open: OutputItem | None = None
    _texts: list[str] = field(default_factory=list)
    _input: FreeInput = field(default_factory=FreeInput)

    def add(self, piece: Piece) -> Iterator[ResponseEvent]:
        """Add a piece of the answer, and yield its events."""
        match piece:
            case TextPiece(text) | ReasoningPiece(text) if not text:
                return
            case TextPiece(text):
                if not isinstance(self._open, OutputMessage):
                    yield from self._begin(self._message())
            case ReasoningPiece(text):
                if not isinstance(self._open, OutputReasoning):
                    yield from self._begin(self._reasoning())
            case CallStarted(name):
                yield from self._begin(self._call(name))
                return
            case CallArguments(text):
                if isinstance(self._open, OutputCustomCall):
                    text = self._input.feed(text)
        yield from self._more(text)

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """Close the open item and yield its events. An empty answer becomes an empty message."""
        if self._open is None and not self.items:
            yield from self._begin(self._message())
        yield from self._close(status)

    def _begin(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._open, self._texts = item, []
        index, number = len(self.items), next(self.numbers)
        yield ItemAdded(sequence_number=number, output_index=index, item=item)
        part = _part_of(item, "")
        if part is not None:
            yield PartAdded(part=part, **self._place())

    def _more(self, text: str) -> Iterator[ResponseEvent]:
        """Yield a delta of the open item. An item whose arguments are an object has no deltas."""
        self._texts.append(text)
        if text and not isinstance(self._open, OutputSearchCall | OutputClientCall):
            yield self._delta(text)

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        if self._open is None:
            return
        if isinstance(self._open, OutputCustomCall):
            yield from self._more(self._input.end())
        text = "".join(self._texts)
        yield from self._done(self._open, text)
        item = _finished(self._open, text, status)
        index, number = len(self.items), next(self.numbers)
        self._open = None
        self.items.append(item)
        yield ItemDone(sequence_number=number, output_index=index, item=item)

    def _delta(self, text: str) -> ResponseEvent:
        match self._open:
            case OutputMessage():
                return OutputTextDelta(delta=text, **self._place())
            case OutputReasoning():
                return ReasoningDelta(delta=text, **self._place())
            case OutputCustomCall():
                return CustomInputDelta(delta=text, **self._place())
            case _:
                return ArgumentsDelta(delta=text, **self._place())

    def _done(self, item: OutputItem, text: str) -> Iterator[ResponseEvent]:
        match item:
            case OutputMessage():
                yield TextDone(text=text, **self._place())
            case OutputReasoning():
                yield ReasoningDone(text=text, **self._place())
            case OutputCall():
                yield ArgumentsDone(name=item.name, arguments=text, **self._place())
            case OutputCustomCall():
                yield CustomInputDone(input=text, **self._place())
        part = _part_of(item, text)
        if part is not None:
            yield PartDone(part=part, **self._place())

    def _place(self) -> _Place:
        assert self._open is not None
        return {
            "sequence_number": next(self.numbers),
            "output_index": len(self.items),
            "item_id": self._open.id,
        }

    def _message(self) -> OutputMessage:
        return OutputMessage(id=self._id("message"), status="in_progress", content=[])

    def _reasoning(self) -> OutputReasoning:
        return OutputReasoning(id=self._id("reasoning"), status="in_progress", content=[])

    def _call(self, name: str) -> OutputItem:
        called = self.calls.get(name, Called("function", name))
        begun: _Call = {
            "id": self._id(CALL_ITEMS[called.kind]),
            "status": "in_progress",
            "call_id": f"call_{self.request_id[:20]}{self._number():04x}",
        }
        space = UNSET if called.namespace is None else called.namespace
        match called.kind:
            case "function":
                return OutputCall(name=called.name, namespace=space, arguments="", **begun)
            case "custom":
                self._input = FreeInput()
                return OutputCustomCall(name=called.name, namespace=space, input="", **begun)
            case "tool_search":
                return OutputSearchCall(arguments={}, **begun)
            case "local_shell":
                return OutputLocalShell(action=asked_of(called.kind, {}), **begun)
            case "shell":
                return OutputShell(action=asked_of(called.kind, {}), **begun)
            case "apply_patch":
                return OutputPatch(operation=asked_of(called.kind, {}), **begun)

    def _id(self, kind: str) -> str:
        return item_id(kind, self.request_id, self._number())

    def _number(self) -> int:
        return self.first + len(self.items) + (self._open is not None)


def _part_of(item: OutputItem, text: str) -> OutputText | ReasoningText | None:
    match item:
        case OutputMessage():
            return OutputText(text=text)
        case OutputReasoning():
            return ReasoningText(text=text)
        case _:
            return None


def _finished(item: OutputItem, text: str, status: ItemStatus) -> OutputItem:
    match item:
        case OutputMessage():
            return replace(item, status=status, content=[OutputText(text=text)])
        case OutputReasoning():
            return replace(item, status=status, content=[ReasoningText(text=text)])
        case OutputCall():
            return replace(item, status=status, arguments=text)
        case OutputCustomCall():
            return replace(item, status=status, input=text)
        case OutputSearchCall():
            found = FinishedCall(SEARCH, text).object()
            return replace(item, status=status, arguments=found)
        case OutputLocalShell():
            found = FinishedCall("local_shell", text).object()
            return replace(item, status=status, action=asked_of("local_shell", found))
        case OutputShell():
            found = FinishedCall("shell", text).object()
            return replace(item, status=status, action=asked_of("shell", found))
        case OutputPatch():
            found = FinishedCall("apply_patch", text).object()
            return replace(item, status=status, operation=asked_of("apply_patch", found))
