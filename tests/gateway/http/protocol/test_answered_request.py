"""A connection that waits for its next request holds no object of the answered request."""

from __future__ import annotations

import asyncio
import weakref

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tests.doubles.gateway.wire import Wire
from tests.gateway.http.protocol.in_memory import answers, connection_to, turns

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Held:
    """An object that a request's application keeps in its scope."""


class Holding:
    """An application that puts an object into each scope, and answers once `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.held = list[weakref.ref[Held]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["held"] = Held()
        self.held.append(weakref.ref(scope["held"]))
        await self.may_answer.wait()
        await PlainTextResponse("done")(scope, receive, send)


async def test_an_answered_request_s_objects_are_freed() -> None:
    wire, application = Wire(), Holding()
    with connection_to(wire, ServerState(), application=application) as connection:
        connection.data_received(GET)
        await turns()
        assert application.held[0]() is not None, "the control"
        application.may_answer.set()
        await turns()
        assert (answers(wire), connection.is_idle) == (1, True)
        assert application.held[0]() is None
        connection.data_received(GET)
        await turns()
        assert answers(wire) == 2, "the connection is still of use"
