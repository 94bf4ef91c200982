"""A worker's running requests, as the worker itself knows them.

A worker chooses by these requests if the router process does not answer. The worker also sends
these requests to a router process to which it connects.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from engine.link.event_messages import Reused, Timing
from gateway.router_process.messages import NoteBegan, NoteSent
from gateway.routing.prompt import RoutingRequest
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter

# Bytes of requests sent to a new router at once, fewer than the channel's limit on waiting bytes.
MOST_TOLD_KEY_BYTES = 32 << 20


@dataclass(slots=True)
class WorkerRequest:
    """A running request of a worker."""

    replica: str
    request: RoutingRequest
    has_begun: bool = False


class OwnRequests(LeastOutstandingRouter):
    """A router that knows only a worker's own requests. Belongs to one event loop."""

    def __init__(self, most_told_key_bytes: int = MOST_TOLD_KEY_BYTES) -> None:
        super().__init__()
        self._most_told_key_bytes = most_told_key_bytes
        self._under_way: dict[str, WorkerRequest] = {}

    def sent(self, replica: str, request: RoutingRequest) -> None:
        super().sent(replica, request)
        self._under_way[request.request_id] = WorkerRequest(replica, request)

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        super().began(replica, request_id, reused, timing)
        if self._is_at(replica, request_id):
            # The keys served to predict the replica's cache. From now on the engine reports its
            # cache.
            request = replace(self._under_way[request_id].request, block_keys=b"")
            self._under_way[request_id] = WorkerRequest(replica, request, has_begun=True)

    def ended(self, replica: str, request_id: str) -> None:
        super().ended(replica, request_id)
        if self._is_at(replica, request_id):
            del self._under_way[request_id]

    def gone(self, replica: str) -> None:
        super().gone(replica)
        self._under_way = {n: one for n, one in self._under_way.items() if one.replica != replica}

    def told_anew(self) -> Iterator[NoteSent | NoteBegan]:
        """Yield the notes that a new router needs. If there are many keys, leave some keys out."""
        room = self._most_told_key_bytes
        for request_id, one in self._under_way.items():
            request = one.request
            if len(request.block_keys) > room:
                request = replace(request, block_keys=b"")
            room -= len(request.block_keys)
            yield NoteSent(one.replica, request)
            if one.has_begun:
                yield NoteBegan(request_id)

    def _is_at(self, replica: str, request_id: str) -> bool:
        under_way = self._under_way.get(request_id)
        return under_way is not None and under_way.replica == replica
