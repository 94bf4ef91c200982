"""The route of a request: the engines that answer it and compute its prompt, noted at once.

Each decision must use all earlier decisions, whichever process asked for them. The router of this
process may decide, and answers at once. Otherwise several processes ask one router
(`gateway.router_process`). Calls that return an answer wait for that router.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from engine.link.messages import FetchSource
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits, prefill_choice, prefill_id
from gateway.routing.router import Router, RouterEvents, RoutingChoice, Sources


class RouteQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A request, and the replicas that may take it now."""

    request: RoutingRequest
    ready: Annotated[Sequence[str], Meta(min_length=1)]
    sources: Sources = {}  # replicas from which blocks may be fetched, with their addresses
    computing: Sequence[str] = ()  # replicas that may compute the prompt for the answering replica
    # The source that computed the request's prompt for an earlier attempt. The replica always
    # fetches from this source.
    source: FetchSource | None = None


class Route(msgspec.Struct, frozen=True, array_like=True):
    """The engine that answers a request, and another engine that computes its prompt, if any."""

    answer: RoutingChoice
    prompt: RoutingChoice | None = None
    # whether the route was decided without the router process, which did not answer
    is_alone: bool = False


def decide(router: Router, question: RouteQuestion, limits: RemotePrefillLimits) -> Route:
    """Choose a route, and record the request as sent."""
    request, sources = question.request, question.sources
    answer = router.choose(request, question.ready, sources)
    able = [name for name in question.computing if name in sources]
    prompt = prefill_choice(router, request, answer, able, sources, limits)
    source = question.source
    if prompt is not None:
        source = FetchSource(
            sources[prompt.replica], request.tokens, prefill_id(request.request_id)
        )
    if source is not None:
        answer = answer._replace(source=source, first_token_s=None)
    route = Route(answer, prompt)
    for replica, sent in sent_by(request, route):
        router.sent(replica, sent)
    return route


def sent_by(request: RoutingRequest, route: Route) -> Iterator[tuple[str, RoutingRequest]]:
    """Yield each sent request with its replica: a remote prefill first, then the request."""
    prompt, answer = route.prompt, route.answer
    if prompt is not None:
        name = prefill_id(request.request_id)
        yield prompt.replica, replace(request, request_id=name, source=prompt.source)
    yield answer.replica, replace(request, source=answer.source)


class Routing(RouterEvents, Protocol):
    """The questions that replicas ask of a router. Belongs to one event loop.

    Calls that report events return at once, as the calls of `Router` do.
    """

    @property
    def hears_itself(self) -> bool:
        """True if the router receives the engines' cache events itself, without `heard`."""
        ...

    @property
    def router_answers(self) -> bool | None:
        """True if the asked router process answers; None without a router process."""
        ...

    async def route(self, question: RouteQuestion) -> Route:
        """Choose the route of a request. The request counts as sent from then on. Never fails.

        If the call is cancelled, the request does not count as sent.
        """
        ...

    async def source(
        self, request: RoutingRequest, replica: str, sources: Sources
    ) -> FetchSource | None:
        """Choose the source from which `replica` fetches a prompt, or None. Records nothing."""
        ...


class OwnRouting:
    """A `Routing` that asks this process's own router.

    No call waits, so no other task can run before the answer.
    """

    hears_itself = False
    router_answers = None

    def __init__(self, router: Router, limits: RemotePrefillLimits | None = None) -> None:
        self._router = router
        self._limits = limits or RemotePrefillLimits()
        self.began, self.ended = router.began, router.ended
        self.heard, self.gone = router.heard, router.gone
        self.known_blocks = router.known_blocks

    async def route(self, question: RouteQuestion) -> Route:
        return decide(self._router, question, self._limits)

    async def source(
        self, request: RoutingRequest, replica: str, sources: Sources
    ) -> FetchSource | None:
        return self._router.choose(request, [replica], sources).source
