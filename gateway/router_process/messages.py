"""The messages between workers and the router process: MessagePack, each frame after its length.

worker                          router process
             <- KnownBlocks         as soon as it is connected, then every second
    NoteSent, NoteBegan ... ->      the requests under way, if it was connected before
    AskRoute 7 ->                   a request: decided, and noted as sent
             <- RouteAnswer 7
    NoteBegan ->                    its first token
    NoteEnded ->                    it is over, or was not sent after all

Frames arrive in order, so a worker that has read an answer knows that all its earlier notes were
read. When a connection ends, all requests that were noted on it count as ended.

Elsewhere: who asks and answers (`client.py`, `service.py`).
"""

import msgspec

from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource
from gateway.routing.prompt import RoutingRequest
from gateway.routing.route import Route, RouteQuestion
from gateway.routing.router import Sources


class AskRoute(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """The question which replica gets a request. The request counts as sent to this replica."""

    number: int
    question: RouteQuestion


class AskSource(msgspec.Struct, frozen=True, array_like=True, tag="ask_source"):
    """The question from which source `replica` should fetch a prompt. The router notes nothing."""

    number: int
    request: RoutingRequest
    replica: str
    sources: Sources


class NoteSent(msgspec.Struct, frozen=True, array_like=True, tag="sent"):
    """The note that a worker has sent a request to a replica that it chose by itself."""

    replica: str
    request: RoutingRequest


class NoteBegan(msgspec.Struct, frozen=True, array_like=True, tag="began"):
    """The note that the first tokens of a request have come."""

    request_id: str
    reused: Reused | None = None
    timing: Timing | None = None


class NoteEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The note that a request is over, or was not sent. Ignored for an unknown request."""

    request_id: str


ToRouter = AskRoute | AskSource | NoteSent | NoteBegan | NoteEnded


class RouteAnswer(msgspec.Struct, frozen=True, array_like=True, tag="routed"):
    """The answer to the `AskRoute` of this number."""

    number: int
    route: Route


class SourceAnswer(msgspec.Struct, frozen=True, array_like=True, tag="source"):
    """The answer to the `AskSource` of this number."""

    number: int
    source: FetchSource | None


class KnownBlocks(msgspec.Struct, frozen=True, array_like=True, tag="known"):
    """The known blocks of each replica. Until the first such message, workers ask nothing."""

    blocks: dict[str, int]


FromRouter = RouteAnswer | SourceAnswer | KnownBlocks
