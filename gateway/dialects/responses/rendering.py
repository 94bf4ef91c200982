"""The rendering of one answer in the Responses API's shape, whole or as events.

The first two events of a stream have the response without output. The events of each item follow.
The last event has the whole response. A whole answer has the same items.

Elsewhere: an item's events (`output.py`), and where a response is stored (`stored.py`).
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gateway.dialects.explaining import DraftUsage, RatoonReply
from gateway.dialects.finished_choice import FinishedCall, FinishedChoice, FinishedPiece, pieces_of
from gateway.dialects.openai_shape import CacheWrites, cached_by_tier, limit_headers
from gateway.dialects.responses.diagnostics import MissQuestions
from gateway.dialects.responses.events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    event,
)
from gateway.dialects.responses.input_items.tool_entries import Called
from gateway.dialects.responses.output import Output
from gateway.dialects.responses.replies import (
    IncompleteDetails,
    InputDetails,
    ItemStatus,
    OutputDetails,
    ResponseFailure,
    ResponseReply,
    ResponseUsage,
)
from gateway.errors import GatewayError
from gateway.generation.choice import ChoiceEnded, Event
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus
from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece


class ResponseRendering:
    """A renderer of the answer to one request. `begun` is the response without output.

    The last event sends `is_stored` as `store`. At first `is_stored` means that the request asks to
    store the response, and at the end that the response has been stored. If `has_output` is false,
    nothing is generated, and the empty response counts as complete.
    """

    last: ClassVar[bytes] = b""

    def __init__(
        self,
        request_id: str,
        begun: ResponseReply,
        first_item: int,
        asked: MissQuestions,
        calls: Mapping[str, Called],
        *,
        has_output: bool = True,
    ) -> None:
        self.is_stored = begun.store
        self._has_output = has_output
        self._begun = begun
        self._asked = asked
        self._numbers = itertools.count()
        self._output = Output(request_id, first_item, self._numbers, calls)
        self._end: ChoiceEnded | None = None

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        return limit_headers(standing)

    def begin(self, usage: Usage) -> bytes:
        """Write the first two events of a stream, with the response without output."""
        del usage  # the usage is sent at the end
        return b"".join(
            event(kind(sequence_number=next(self._numbers), response=self._begun))
            for kind in (ResponseCreated, ResponseInProgress)
        )

    def frame(self, told: Event) -> bytes | None:
        """Write the stream events for `told`. The answer's last event closes the open item."""
        return b"".join(map(event, self._events(told))) or None

    def usage_frame(self, usage: Usage) -> bytes:
        """Write the whole response as the last event."""
        reply, number = self.finished(usage), next(self._numbers)
        if reply.status == "incomplete":
            return event(ResponseIncomplete(sequence_number=number, response=reply))
        return event(ResponseCompleted(sequence_number=number, response=reply))

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> ResponseReply:
        self.take(choices)
        return self.finished(usage)

    def failed(self, error: GatewayError) -> bytes:
        """Write the last event of a stream that fails, with the complete items."""
        failure = ResponseFailure(error.code, error.message)
        output = list(self._output.items)
        reply = replace(self._begun, status="failed", error=failure, output=output, store=False)
        return event(ResponseFailed(sequence_number=next(self._numbers), response=reply))

    def take(self, choices: Sequence[FinishedChoice]) -> None:
        """Make the items of the answer from `choices`, unless a stream has made them already."""
        if self._end is not None:
            return
        [choice] = choices
        for piece in itertools.chain.from_iterable(map(_pieces, choice.pieces)):
            _pass(self._output.add(piece))
        _pass(self._ended(choice.end))

    def finished(self, usage: Usage) -> ResponseReply:
        """Return the finished response, with its output and usage."""
        assert self._end is not None
        is_complete = self._end.reason == "stop" or not self._has_output
        return replace(
            self._begun,
            status="completed" if is_complete else "incomplete",
            completed_at=int(time.time()) if is_complete else None,
            incomplete_details=None if is_complete else IncompleteDetails(),
            output=self._output.items,
            usage=_usage(usage),
            store=self.is_stored,
            prompt_cache_diagnostics=self._asked.diagnostics(usage),
            ratoon=self._ratoon(usage),
        )

    def _ratoon(self, usage: Usage) -> RatoonReply | UnsetType:
        missed, begun = self._asked.ratoon(usage), self._begun.ratoon
        if missed is UNSET or begun is UNSET:
            return begun if missed is UNSET else missed
        return replace(missed, ignored=begun.ignored)

    def _events(self, told: Event) -> Iterator[ResponseEvent]:
        if isinstance(told, ChoiceEnded):
            yield from self._ended(told)
            return
        for piece in pieces_of(told):
            yield from self._output.add(piece)

    def _ended(self, end: ChoiceEnded) -> Iterator[ResponseEvent]:
        self._end = end
        if self._has_output:
            yield from self._output.end(_item_status(end))


def _item_status(end: ChoiceEnded) -> ItemStatus:
    return "completed" if end.reason == "stop" else "incomplete"


def _pieces(piece: FinishedPiece) -> tuple[Piece, ...]:
    if isinstance(piece, FinishedCall):
        return (CallStarted(piece.name), CallArguments(piece.arguments))
    return (piece,)


def _pass(events: Iterator[object]) -> None:
    for _ in events:
        pass


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=sum(usage.written),
            cache_write_tokens_details=CacheWrites.of(usage),
            ratoon=cached_by_tier(usage),
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens, DraftUsage.of(usage)),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
