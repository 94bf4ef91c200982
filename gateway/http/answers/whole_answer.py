"""The answers that are sent whole: their memory, and the sending of large answers in pieces.

    gathered ---> spelled in pieces ---> connection
       `------- counted until the last piece is sent -------'

A small answer is one piece, and its head has the answer's length. Each piece of a large answer is
encoded when the client has taken the earlier pieces. A large answer is therefore never in memory as
a whole.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.config import Bounds
from gateway.errors import AnswerTooLarge, GatewayError, TooManyRequests, Unavailable
from gateway.http.answers.answer_memory import AnswerMemory, Bound
from gateway.http.request_head import ClientGone, RunningRequest, running_request, until_gone

_KEY = "ratoon.gathered"
_JSON = "application/json"
_RETRY_S = 2.0
_AT_ONCE = 128 << 10

_LOG = logging.getLogger(__name__)


class GatheredAnswers(AnswerMemory):
    """The memory that one server's whole answers take. Used in one event loop."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            bounds.max_answer_bytes, bounds.max_tenant_answer_bytes, bounds.max_all_answer_bytes
        )


class Gathered:
    """The memory that one whole answer takes, with its `size` in bytes."""

    def __init__(self, memory: AnswerMemory, running: RunningRequest) -> None:
        self.size = 0
        self.tenant_id = running.tenant_id
        self._memory = memory
        self._running = running
        self._is_over = False

    def grow(self, more: int) -> None:
        """Change the answer's size by `more` bytes. Cut off the request beyond a limit."""
        if more and not self._is_over:
            self.size += more
            self._memory.count(self, more)

    def cut_off(self, beyond: Bound) -> None:
        _LOG.info("cutting off an answer of which %d bytes are held", self.size)
        self._running.cut_off(_ERRORS[beyond]())
        self.release()

    def release(self) -> None:
        """Release the memory. Repeated calls do nothing."""
        self.grow(-self.size)
        self._is_over = True


def let_gather(scope: Scope, memory: AnswerMemory) -> None:
    """Have `memory` count the unstreamed answer of this scope's request."""
    scope[_KEY] = memory


def gathered(scope: Scope) -> Gathered:
    """Return the memory that this scope's unstreamed answer takes until the request is over."""
    memory: AnswerMemory | None = scope.get(_KEY)
    if memory is None:  # the server does not limit memory
        memory = GatheredAnswers(Bounds())
    return gathered_by(running_request(scope), memory)


def gathered_by(running: RunningRequest, memory: AnswerMemory) -> Gathered:
    """Open the memory of a request's whole answer. Release it when the request is over."""
    answer = Gathered(memory, running)
    running.at_end.callback(answer.release)
    return answer


async def answer_of(
    pieces: AsyncIterator[bytes], headers: Mapping[str, str], media_type: str = _JSON
) -> Response:
    """Return an answer made of pieces. An answer of one piece is sent with its length."""
    first = await anext(pieces)
    second = await anext(pieces, None)
    if second is None:
        return Response(first, headers=headers, media_type=media_type)
    return _LargeAnswer(first, second, pieces, headers, media_type)


async def as_taken(answer: Response) -> Response:
    """Return an answer with the content of `answer`, compressed if the client accepts gzip."""
    of_body = ("content-length", "content-type")
    headers = {name: value for name, value in answer.headers.items() if name not in of_body}
    return await answer_of(in_pieces(bytes(answer.body)), headers, answer.media_type or _JSON)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Yield all of `body` in pieces that a connection takes at once."""
    view = memoryview(body)
    for start in range(0, len(body), _AT_ONCE):
        yield bytes(view[start : start + _AT_ONCE])


class _LargeAnswer(Response):
    def __init__(
        self,
        first: bytes,
        second: bytes,
        rest: AsyncIterator[bytes],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._begin = [first, second]
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        with suppress(ClientGone):
            await until_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        while self._begin:
            await send(_body(self._begin.pop(0)))
        async for piece in self._rest:
            await send(_body(piece))
        await send(_body(b"", more=False))


def _body(piece: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


def _of_tenant() -> GatewayError:
    return TooManyRequests(
        "this tenant's answers that are sent whole take more memory than they may; stream them, or "
        "ask for fewer at once",
        code="too_many_answer_bytes",
        retry_after_s=_RETRY_S,
    )


def _of_all() -> GatewayError:
    return Unavailable("the gateway holds as many answers as it may", retry_after_s=_RETRY_S)


_ERRORS = {"answer": AnswerTooLarge, "tenant": _of_tenant, "all": _of_all}
