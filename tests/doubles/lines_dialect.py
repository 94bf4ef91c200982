"""A small made-up dialect: answers and errors are lines of text.

The dialect implements the whole protocol. Its paths, errors, error statuses, streams and header
fields all differ from OpenAI's.
"""
# No `from __future__ import annotations`: FastAPI evaluates the handlers' annotations.

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from engine.link.messages import SamplingParams
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import DialectRequest, read_wire
from gateway.dialects.finished_choice import FinishedChoice
from gateway.errors import GatewayError
from gateway.generation.choice import Delta, Event
from gateway.http.error_dialect import RenderedError
from gateway.http.openapi import described
from gateway.http.request_head import request_id_of
from gateway.prompts.generation_request import GenerationRequest, TextRules
from gateway.requests.permits import Permit
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus

OVERLOADED = 529  # a status without a standard phrase, like Anthropic's


class LinesRequest(msgspec.Struct, frozen=True):
    prompt: str
    stream: bool = False
    stops: list[str] = []
    max_tokens: int = 100


class LinesAnswer(msgspec.Struct, frozen=True):
    said: str
    stopped_by: str | int | None
    tokens: int


class LinesError(msgspec.Struct, frozen=True):
    wrong: str


class LinesRendering:
    """The rendering of one answer."""

    last: ClassVar[bytes] = b"bye\n"

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        left = standing.requests
        return {} if left is None else {"lines-left": str(left.remaining)}

    def frame(self, event: Event) -> bytes | None:
        if isinstance(event, Delta):
            return f"said {event.text}\n".encode() if event.text else None
        return f"stopped by {event.stopped_by}\n".encode()

    def begin(self, usage: Usage) -> bytes | None:
        return None

    def usage_frame(self, usage: Usage) -> bytes | None:
        return f"tokens {usage.completion_tokens}\n".encode()

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> LinesAnswer:
        [choice] = choices
        return LinesAnswer(choice.text, choice.end.stopped_by, usage.completion_tokens)


class Lines:
    """The dialect of lines. Implements `Dialect`."""

    prefixes: ClassVar[tuple[str, ...]] = ("/lines",)
    suffixes: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[Mapping[str, str]] = {}
    client_header: ClassVar[bytes] = b""
    exposed: ClassVar[tuple[str, ...]] = ("lines-code", "lines-id")
    error_schema: ClassVar[type[msgspec.Struct]] = LinesError

    def error_reply(self, error: GatewayError, request_id: str) -> RenderedError:
        status = OVERLOADED if error.status == 503 else error.status
        return RenderedError(status, {"lines-code": error.code}, _wrong(error), "text/plain")

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        return _wrong(error)

    def head_fields(self, request_id: str, spent_ms: float) -> list[tuple[bytes, bytes]]:
        return [(b"lines-id", request_id.encode())]

    def router(self, parts: RouteParts) -> APIRouter:
        router, answering = APIRouter(), parts.answering

        @router.post("/lines/generate", openapi_extra=described(LinesAnswer, LinesRequest))
        async def generate(
            request: Request, permit: Annotated[Permit, Depends(parts.permitted())]
        ) -> Response:
            decoder = msgspec.json.Decoder(LinesRequest)
            wire = await read_wire(request, permit, decoder, parts.bounds, answering.admission)
            asked = DialectRequest(_ask(wire, request), LinesRendering(), request, permit)
            return await asked.respond(answering, stream=wire.stream)

        @router.get("/lines/broken")
        async def broken() -> Response:
            raise RuntimeError("nobody foresaw this")

        return router


def _ask(wire: LinesRequest, request: Request) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id_of(request.scope),
        prompts=(wire.prompt,),
        choices=1,
        sampling=SamplingParams(max_tokens=wire.max_tokens),
        max_tokens_may_shrink=False,
        text=TextRules(stops=tuple(wire.stops)),
    )


def _wrong(error: GatewayError) -> bytes:
    return f"wrong {error.code}\n".encode()
