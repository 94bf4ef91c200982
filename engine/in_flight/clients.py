"""The clients, their running requests, and the events sent to them.

    add ... post ... send        all events of a loop iteration go to each client in one message
    tell                         a message other than an event is sent immediately

A request is removed with its last event. If a client is gone, its requests are cancelled. The
engine makes requests of its own to pin prefixes, compute prompt modules and check answers. It then
acts as its own client.

Elsewhere: how requests are computed (`core.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from engine.components import Components
from engine.errors import EngineError, InvalidRequest
from engine.link.event_messages import Event, StepReply
from engine.link.messages import FromEngine
from engine.scheduling.sequence_events import AddressedEvent, failed
from engine.sequences.pins import OURSELVES
from engine.sequences.sequence import Sequence


class Clients:
    """The accepted requests of all clients of one engine. Used by one thread only."""

    def __init__(self, components: Components) -> None:
        self._link = components.link
        self._pins = components.pins
        self._sentinel = components.sentinel
        self._modules = components.modules
        self._settler = components.settler
        self._clock = components.clock
        self._alive: dict[tuple[bytes, str], Sequence] = {}
        self._outbox: list[AddressedEvent] = []

    @property
    def alive(self) -> Collection[Sequence]:
        """The requests that have not ended."""
        return self._alive.values()

    def check_new(self, client: bytes, request_id: str) -> None:
        """Raise InvalidRequest if this client has an accepted request with this id."""
        if (client, request_id) in self._alive:
            raise InvalidRequest("this request id is already running")

    def add(self, sequence: Sequence) -> None:
        """Add an accepted request."""
        self._alive[sequence.client, sequence.request_id] = sequence

    def is_alive(self, sequence: Sequence) -> bool:
        """Return whether the sequence's last event has not been posted yet."""
        return self.find(sequence.client, sequence.request_id) is sequence

    def find(self, client: bytes, request_id: str) -> Sequence | None:
        """Find a client's running request, or return None."""
        return self._alive.get((client, request_id))

    def find_of_any(self, request_id: str) -> Sequence | None:
        """Find a running request of any client by its id, or return None."""
        return next((one for one in self.alive if one.request_id == request_id), None)

    def post(self, events: Iterable[AddressedEvent]) -> None:
        """Queue events to be sent. A sequence's last event also removes the sequence."""
        for event in events:
            if event.is_last:
                del self._alive[event.client, event.event.request_id]
            self._outbox.append(event)

    def refuse(self, client: bytes, request_id: str, error: EngineError) -> None:
        """Queue the error of a request that was not accepted."""
        self._outbox.append(failed(client, request_id, error))

    def abandon(self, error: EngineError) -> None:
        """Queue `error` for all accepted requests. Other data may be broken and is not used."""
        self._outbox += [failed(one.client, one.request_id, error) for one in self.alive]
        self._alive.clear()

    def send(self) -> None:
        """Send the queued events."""
        outbox, self._outbox = self._outbox, []
        by_client: defaultdict[bytes, list[Event]] = defaultdict(list)
        for client, event in outbox:
            if client == OURSELVES:
                self._sentinel.heard(event)
                self._modules.heard(event)
                self.answer(self._pins.heard(event, self._clock()))
            else:
                by_client[client].append(event)
        for client, events in by_client.items():
            self.tell(client, StepReply(events))

    def answer(self, answers: Iterable[tuple[bytes, FromEngine]]) -> None:
        """Send the replies to pins and queries to the clients that sent them."""
        for client, message in answers:
            self.tell(client, message)

    def tell(self, client: bytes, message: FromEngine) -> None:
        """Send a message. If the client is gone, cancel all its requests."""
        if self._link.send(client, message):
            return
        now = self._clock()
        for owner, request_id in [key for key in self._alive if key[0] == client]:
            self._settler.cancel(self._alive.pop((owner, request_id)), now)
