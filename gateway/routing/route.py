"""The route of a request: the engines that answer it and compute its prompt, noted at once.

Two requests that are decided one after the other know of each other, whoever asks. So what decides
may be the router of this process, which answers at once, or one that several processes ask
(`gateway.router_process`): the calls that end in an answer wait for it.

Knows: what is asked of a router, in which order. Does not know: who is ready, or where it decides.
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
    ready: Annotated[Sequence[str], Meta(min_length=1)]  # replicas that may answer the request
    sources: Sources = {}  # replicas that may be fetched from, with their addresses
    computing: Sequence[str] = ()  # replicas that may compute its prompt for the answering one
    # The source that computes its prompt since an earlier attempt; it is fetched from in any case.
    source: FetchSource | None = None


class Route(msgspec.Struct, frozen=True, array_like=True):
    """The engine of a request, and the engine of its prompt, if that is another."""

    answer: RoutingChoice
    prompt: RoutingChoice | None = None
    is_alone: bool = False  # decided without the router process, since it did not answer


def decide(router: Router, question: RouteQuestion, limits: RemotePrefillLimits) -> Route:
    """Choose a route, and note the request as sent there."""
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
    """Yield each request on its way with its replica: first the prefill, if it is remote."""
    prompt, answer = route.prompt, route.answer
    if prompt is not None:
        name = prefill_id(request.request_id)
        yield prompt.replica, replace(request, request_id=name, source=prompt.source)
    yield answer.replica, replace(request, source=answer.source)


class Routing(RouterEvents, Protocol):
    """The questions that replicas ask of a router. Belongs to one event loop.

    What is said besides questions is as in `Router`, and does not wait.
    """

    @property
    def hears_itself(self) -> bool:
        """True if the router learns of cached blocks without `heard`."""
        ...

    @property
    def router_answers(self) -> bool | None:
        """True if the asked router process answers; None where there is no such process."""
        ...

    async def route(self, question: RouteQuestion) -> Route:
        """Choose the route of a request, which counts as sent from then on. Never fails.

        Nothing is sent if this is cancelled.
        """
        ...

    async def source(
        self, request: RoutingRequest, replica: str, sources: Sources
    ) -> FetchSource | None:
        """Choose the source from which `replica` fetches a prompt, or None. Notes nothing."""
        ...


class OwnRouting:
    """A `Routing` by this process's router: no call waits, so no other task has a turn."""

    hears_itself = False
    router_answers = None

    def __init__(self, router: Router, limits: RemotePrefillLimits | None = None) -> None:
        """Apply `limits` to remote prefills."""
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
