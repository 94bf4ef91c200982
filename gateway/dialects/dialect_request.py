"""The answer to a parsed request of any dialect, sent whole or as a stream."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, TypeVar

import msgspec
from fastapi import Request, Response

from gateway.config import Bounds
from gateway.dialects.finished_choice import FinishedChoice, gather
from gateway.dialects.keep_alive import KeepAlive, with_pauses
from gateway.dialects.lazy_json import Fragments, fragments, piece
from gateway.errors import GatewayError
from gateway.generation.choice import Delta, Event
from gateway.http.answers.event_stream import EventStream
from gateway.http.answers.whole_answer import answer_of, gathered
from gateway.http.bodies.body import Body, JsonDecoder, Part, is_flat, parse_steps
from gateway.http.bodies.reading import read_body
from gateway.http.request_head import running_request, until_gone
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.generation_request import GenerationRequest
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.answering import Answer, Answering
from gateway.requests.permits import Permit
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus

T = TypeVar("T", bound=msgspec.Struct)

BYTES_PER_CHARACTER = 16  # JSON bytes that take as long to parse as one character takes to tokenise
_FLAT_BYTES_PER_CHARACTER = 64  # flat JSON of 256 KiB takes at most 3 ms to parse


class Rendering(Protocol):
    """A dialect's renderer of one answer."""

    last: ClassVar[bytes]  # bytes that end a complete stream; may be empty

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        """Write the answer's headers, which show the tenant's remaining rate limits."""
        ...

    def begin(self, usage: Usage) -> bytes | None:
        """Write the bytes before the first event. `usage` has the prompt's token counts."""
        ...

    def frame(self, event: Event) -> bytes | None:
        """Write the frame for `event`, or return None if there is nothing to send."""
        ...

    def usage_frame(self, usage: Usage) -> bytes | None:
        """Write the frame after the last event, or return None if there is nothing to send."""
        ...

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> msgspec.Struct:
        """Write the whole answer."""
        ...


async def read_wire(
    request: Request,
    permit: Permit,
    decoder: JsonDecoder[T],
    bounds: Bounds,
    admission: Admission,
    bulk: Callable[[Body], Part] | None = None,
) -> T:
    """Parse the body and free its bytes; raise GatewayError for a bad body.

    `bulk` removes the parts of the body that stay unparsed (`Raw`). The values in these parts do
    not count toward limits.
    """
    body = await read_body(request, bounds.max_body_bytes, permit.body)
    size = work_in(body)
    work = parse_steps(decoder, body, bounds.max_json_depth, bulk)
    del body  # from now on only `work` holds the body, and frees it once it is parsed
    return await admission.off_the_loop(permit.caller, work, size)


def work_in(spelled: Body) -> int:
    """Estimate the work of parsing JSON, in units of one tokenised character."""
    each = _FLAT_BYTES_PER_CHARACTER if is_flat(spelled) else BYTES_PER_CHARACTER
    return len(spelled) // each


def work_with(prompt: Body, body_bytes: int) -> int:
    """Estimate the work of parsing a body that contains the JSON `prompt`."""
    return work_in(prompt) + max(body_bytes - len(prompt), 0) // BYTES_PER_CHARACTER


Ending = Callable[[Sequence[FinishedChoice], Usage], Awaitable[None]]


@dataclass(slots=True)
class DialectRequest:
    """A parsed request: its generation request, and the renderer of its answer.

    `ending` is awaited before the end of the answer is rendered. `ending` gets the choices of a
    whole answer, or no choices for a stream. The context `around` is entered before the answer and
    left after the answer. An error that `around` raises is sent as the answer. `error_event` writes
    the last event of a stream that fails. By default the dialect writes that event.
    """

    generation_request: GenerationRequest | None
    rendering: Rendering
    request: Request
    permit: Permit
    keep_alive: KeepAlive | None = None
    headers: dict[str, str] = field(default_factory=dict)  # known once the request is admitted
    ending: Ending | None = None
    around: AbstractAsyncContextManager[None] | None = None
    error_event: Callable[[GatewayError], bytes] | None = None
    # work of encoding the echoed prompts, in units of one tokenised character
    echoed: int = 0

    async def respond(self, answering: Answering, *, stream: bool) -> Response:
        """Return the answer, as a stream or whole."""
        if stream:
            frames, last = self._frames(answering), self.rendering.last
            return EventStream(frames, last, self.headers, self.error_event)
        return await until_gone(self.request.receive, self._whole(answering))

    async def _whole(self, answering: Answering) -> Response:
        held = gathered(self.request.scope)
        async with self._answer(answering, is_whole=True) as answer:
            self.headers.update(self.rendering.headers(self.permit.standing))
            choices = await gather(answer.events, held.grow)
            await self._end(choices, answer)
            usage = self._usage(answer)
        pieces = self._pieces(choices, usage, answering.admission)
        return await answer_of(pieces, self.headers)

    async def _pieces(
        self, choices: Sequence[FinishedChoice], usage: Usage, admission: Admission
    ) -> AsyncGenerator[bytes, None]:
        """Yield the JSON of a whole answer in pieces. Encode large answers off the event loop."""
        spelled = self._spelled(choices, usage)
        work = self.echoed + sum(choice.work for choice in choices)
        caller = self.permit.caller
        while made := await admission.spell(caller, piece(spelled), work):
            yield made

    def _spelled(self, choices: Sequence[FinishedChoice], usage: Usage) -> Fragments:
        yield from fragments(self.rendering.whole(choices, usage))

    async def _frames(self, answering: Answering) -> AsyncGenerator[bytes, None]:
        rendering = self.rendering
        async with self._answer(answering) as answer, self._heard(answer) as events:
            self.headers.update(rendering.headers(self.permit.standing))
            has_begun = False
            async for event in events:
                if event is None:
                    assert self.keep_alive is not None
                    yield self.keep_alive.frame
                    continue
                begun = b"" if has_begun else rendering.begin(self._usage(answer)) or b""
                has_begun = True
                if isinstance(event, Delta) and (event.reused or not event.token_ids):
                    frame = begun + await self._first_frame(event, answering.admission)
                else:
                    frame = begun + (rendering.frame(event) or b"")
                if frame:
                    yield frame
            await self._end((), answer)
            last = rendering.usage_frame(self._usage(answer))
            if last is not None:
                yield last

    async def _first_frame(self, event: Delta, admission: Admission) -> bytes:
        size = self.echoed + (0 if event.prompt is None else event.prompt.work)
        return await admission.spell(
            self.permit.caller, in_one_step(lambda: self.rendering.frame(event) or b""), size
        )

    async def _end(self, choices: Sequence[FinishedChoice], answer: Answer) -> None:
        if self.ending is not None:
            await self.ending(choices, self._usage(answer))

    def _answer(
        self, answering: Answering, *, is_whole: bool = False
    ) -> AbstractAsyncContextManager[Answer]:
        """Start the answer and drop the generation request, to free its memory early."""
        generation_request, self.generation_request = self.generation_request, None
        assert generation_request is not None
        scope = self.request.scope
        running = running_request(scope)
        answered = answering.answer(
            generation_request, scope["route"].path, running, self.permit, is_whole=is_whole
        )
        return answered if self.around is None else _within(self.around, answered)

    def _heard(self, answer: Answer) -> AbstractAsyncContextManager[AsyncIterator[Event | None]]:
        if self.keep_alive is None:
            return nullcontext(answer.events)
        return aclosing(with_pauses(answer.events, self.keep_alive.every_s))

    def _usage(self, answer: Answer) -> Usage:
        used = answer.request_metrics.usage()
        return used if self.permit.caller.sees_tiers else replace(used, tiers=None)


@asynccontextmanager
async def _within(
    around: AbstractAsyncContextManager[None], answered: AbstractAsyncContextManager[Answer]
) -> AsyncIterator[Answer]:
    async with around, answered as answer:
        yield answer


def json_response(encoded: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Make a response with the JSON `encoded`."""
    return Response(encoded, headers=headers, media_type="application/json")
