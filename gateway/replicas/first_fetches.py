"""The fetches of published prefixes by a replica before it is asked to pin them.

A new engine is asked for all pins, and would compute each prefix. If fetching is predicted to be
faster, the engine is first sent a request that only fetches the prefix. A replica fetches one
prefix at a time, for WITHIN_S at most. The prefix with the most hits at other replicas is first.
These fetches have the priority of live requests. The pin computes the blocks that were not fetched,
so nobody sees an error.

Elsewhere: who publishes (`gateway.sharing`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from heapq import heappop, heappush
from itertools import count

from msgspec.structs import replace

from engine.errors import EngineError
from engine.link.messages import Generate, SamplingParams
from engine.link.query_messages import Pin
from engine.link.view_messages import PrefixesQuery
from gateway.replicas.fan_out import ask_all
from gateway.replicas.members import Members
from gateway.replicas.routing_notes import RoutingNotes
from gateway.routing.prompt import routing_request
from gateway.routing.route import Routing
from gateway.state.records import PUBLISHED
from prefix_cache.namespace import Namespace, NamespacePath

WITHIN_S = 30.0  # maximum seconds to fetch one prefix; afterwards the replica computes the prefix
LISTED = 200  # number of hottest nodes that each engine is asked for
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class FirstFetches:
    """The first fetches of all replicas of a gateway process. Used in one event loop."""

    def __init__(
        self, members: Members, routing: Routing, notes: Callable[[], RoutingNotes]
    ) -> None:
        self._members = members
        self._routing = routing
        self._notes = notes
        self._turns: dict[str, HottestFirst] = {}

    async def fetch(self, names: list[str], prefix: Pin) -> None:
        """Let replicas fetch the prefix if fetching is faster than computing.

        Returns when each replica has fetched or given up.
        """
        request = _as_request(prefix)
        asked = await asyncio.gather(*(self._request(name, request) for name in names))
        fetching = [fetch for fetch in asked if fetch is not None]
        if not fetching:
            return
        hits = (await self._hits()).get(prefix.pin_id, 0)
        await asyncio.gather(*(self._fetch_in_turn(name, one, hits) for name, one in fetching))

    async def _request(self, name: str, request: Generate) -> tuple[str, Generate] | None:
        seen = routing_request(request)
        source = await self._routing.source(seen, name, self._members.sources())
        if source is None:
            return None
        return name, replace(request, source=replace(source, only=True))

    async def _fetch_in_turn(self, name: str, request: Generate, hits: int) -> None:
        async with self._turns.setdefault(name, HottestFirst()).turn(hits):
            engine = self._members.engines.get(name)
            if engine is None:
                return
            self._notes().fetch("published")
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(WITHIN_S), aclosing(engine.generate(request)) as events:
                    async for _ in events:
                        pass

    async def _hits(self) -> Mapping[str, int]:
        """Count the requests that have found each pinned prefix, only for the hottest prefixes."""
        serving, found = self._members.serving(), dict[str, int]()
        with suppress(EngineError):
            answers = await ask_all(serving, PrefixesQuery(order="hot", limit=LISTED))
            for node in (node for one in answers.values() for node in one.prefixes):
                for pin_id in node.pins:
                    found[pin_id] = min(found.get(pin_id, node.hits), node.hits)
        return found


class HottestFirst:
    """The turns of waiting prefixes, one at a time. The prefix with the most hits is next."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._serial = count()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, hits: int) -> AsyncIterator[None]:
        """Hold a turn while this context is open."""
        mine = asyncio.Event()
        entry = (-hits, next(self._serial), mine)
        heappush(self._waiting, entry)
        try:
            await asyncio.sleep(0)  # lets other prefixes join the wait
            self._next()
            await mine.wait()
            yield
        finally:
            if mine.is_set():
                self._is_taken = False
            else:
                self._waiting = sorted(one for one in self._waiting if one is not entry)
            self._next()

    def _next(self) -> None:
        if not self._is_taken and self._waiting:
            self._is_taken = True
            heappop(self._waiting)[2].set()


def _as_request(prefix: Pin) -> Generate:
    path = NamespacePath.single(Namespace(prefix.namespace))
    return Generate(
        request_id=f"first~{prefix.pin_id}",
        token_ids=prefix.token_ids,
        namespaces=path.spans,
        block_keys=prefix.block_keys,
        flow=PUBLISHED,
        priority="batch",
        sampling=_ONE_TOKEN,
    )
