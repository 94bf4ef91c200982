"""The members of a set of replicas, and which of them take requests.

    absent --connects--> ready <--heartbeats miss, come again--> stalled
      ^                    |  `--announces its stop--> draining
      |                    |                              |
      `------ the connection ends, whichever state -------'

Members may join and leave while others serve. A leaving member gets no new request, and is dropped
once its running requests have ended.

A member whose fingerprint is not the common fingerprint is refused. Its KV blocks and answers would
be another model's. The first engine that connects sets the common fingerprint. The common
fingerprint changes only when all replicas that had it have come back with other fingerprints. A
replica that is away may still come back with the common fingerprint.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from engine.link.event_messages import Finished, Tokens
from engine.link.interface import Engine, OnEnd, ReplicaHealth, ReplicaState
from engine.link.messages import Generate, Role, Welcome
from gateway.routing.router import Sources

_LOG = logging.getLogger(__name__)

_WHY: dict[ReplicaState, str] = {
    "ready": "",
    "stalled": "the engine does not answer",
    "draining": "the engine is stopping",
    "absent": "no engine is connected",
}
_IS_AWAY = frozenset(("absent", "handshake_failed"))
_SERVES = frozenset(("ready", "stalled", "draining"))
_SENDS = frozenset(("ready", "draining"))


class ReplicaEngine(Engine, Protocol):
    """An engine whose requests can be taken away, such as an `EngineClient`."""

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Generate as `Engine.generate` does, without any `Restarted`."""
        ...

    @property
    def is_idle(self) -> bool:
        """True if no request is running, and no end of an abandoned request is awaited."""
        ...

    def give_up(self, request_id: str, why: str) -> bool:
        """End a request's stream with EngineUnavailable, and cancel the request in the engine.

        Events that the engine still sends for the request reach only `on_end`. Returns False, and
        does nothing, if the stream's reader has an unread event.
        """
        ...


class Members:
    """The replicas by name, in order. Used in one event loop."""

    def __init__(
        self, engines: Mapping[str, ReplicaEngine], gone: Callable[[str], None] = lambda _: None
    ) -> None:
        self.engines = dict(engines)
        self._gone = gone
        # ids of connected engines by replica name; None: not connected
        self._ids: dict[str, str | None] = dict.fromkeys(self.engines)
        self._stopping: dict[str, str] = {}
        self._leaving: set[str] = set()
        self._last: dict[str, bytes] = {}
        self._roles: dict[str, Role] = {}
        self._fingerprint: bytes | None = None

    def join(self, name: str, engine: ReplicaEngine) -> None:
        """Add a replica, or keep the replica of this name that was about to leave."""
        self._leaving.discard(name)
        if name not in self.engines:
            self.engines[name] = engine
            self._ids[name] = None

    def leave(self, name: str) -> ReplicaEngine | None:
        """Send a replica no new requests. Remove it and return its engine once it is idle.

        Returns None until then, and may be called again.
        """
        engine = self.engines[name]
        self._leaving.add(name)
        if engine.welcome is not None and not engine.is_idle:
            return None
        del self.engines[name]
        self._leaving.discard(name)
        self._stopping.pop(name, None)
        if self._ids.pop(name) is not None:
            self._gone(name)
        self._last.pop(name, None)
        self._roles.pop(name, None)
        for welcome in filter(None, (one.welcome for one in self.engines.values())):
            # perhaps no replica has the common fingerprint any more
            self._agree(welcome.fingerprint)
        return engine

    def ready(self, tokens: int = 0) -> list[str]:
        """Name the replicas that take requests of `tokens` tokens, including the answer.

        Admission checks the shortest context of the serving replicas. A replica that has connected
        since may have a smaller pool.
        """
        return [
            name
            for name, state in self._states().items()
            if state == "ready" and self._context(name) >= tokens
        ]

    def _context(self, name: str) -> int:
        welcome = self.engines[name].welcome
        return 0 if welcome is None else welcome.max_model_len

    def serving(self) -> dict[str, ReplicaEngine]:
        """Select the connected replicas with the common fingerprint, whether or not they answer."""
        return {n: self.engines[n] for n, state in self._states().items() if state in _SERVES}

    def role(self, name: str) -> Role:
        """Return the role that the replica reported most recently."""
        return self._roles.get(name, "both")

    def sources(self) -> Sources:
        """Select the replicas to fetch from, including replicas that take no new requests."""
        found = {}
        for name, state in self._states().items():
            welcome = self.engines[name].welcome
            if state in _SENDS and welcome is not None and welcome.exchange_address is not None:
                found[name] = welcome.exchange_address
        return found

    def connected(self) -> dict[str, ReplicaEngine]:
        """Select the connected replicas, including refused replicas."""
        return {n: self.engines[n] for n, state in self._states().items() if state not in _IS_AWAY}

    def health(self) -> dict[str, ReplicaHealth]:
        """Return the state of each replica, and why it takes no requests."""
        return {
            name: ReplicaHealth(state, self._why(name, state), self._ids[name], self.role(name))
            for name, state in self._states().items()
        }

    @property
    def is_stalled(self) -> bool:
        """True if no replica is ready, but at least one replica is stalled."""
        states = set(self._states().values())
        return "ready" not in states and "stalled" in states

    @property
    def welcome(self) -> Welcome | None:
        """One `Welcome` for all serving replicas. `engine_id` changes when replicas come or go."""
        ready, serving = self.ready(), self.serving()
        known = [found for one in serving.values() if (found := one.welcome) is not None]
        if not known:
            return None
        ids = [self._ids[name] for name in ready] or [found.engine_id for found in known]
        return replace(
            known[0],
            engine_id="+".join(map(str, ids)),
            max_model_len=min(found.max_model_len for found in known),
        )

    def says_it_stops(self, name: str) -> None:
        """Record that a replica's engine stops, and has therefore refused or returned a request."""
        engine_id = self._ids.get(name)  # the replica may have left meanwhile
        if engine_id is not None:
            self._stopping[name] = engine_id

    def look(self) -> None:
        """Notice the engines that have come and gone since the previous look."""
        for name, engine in self.engines.items():
            welcome, known = engine.welcome, self._ids[name]
            engine_id = None if welcome is None else welcome.engine_id
            if engine_id == known:
                continue
            self._ids[name] = engine_id
            self._stopping.pop(name, None)
            if known is not None:
                self._gone(name)
            if welcome is not None:
                self._last[name], self._roles[name] = welcome.fingerprint, welcome.role
                self._agree(welcome.fingerprint)
            if self._state(name) == "refused":
                _LOG.error("replica %s is refused: %s", name, self._why(name, "refused"))

    def _agree(self, fingerprint: bytes) -> None:
        if self._fingerprint not in self._last.values():
            self._fingerprint = fingerprint

    def _states(self) -> dict[str, ReplicaState]:
        self.look()
        return {name: self._state(name) for name in self.engines}

    def _state(self, name: str) -> ReplicaState:
        engine = self.engines[name]
        welcome = engine.welcome
        if welcome is None:
            return "absent" if engine.handshake_error is None else "handshake_failed"
        if welcome.fingerprint != self._fingerprint:
            return "refused"
        if engine.is_stalled:
            return "stalled"
        stops = name in self._leaving or self._stopping.get(name) == welcome.engine_id
        return "draining" if stops else "ready"

    def _why(self, name: str, state: ReplicaState) -> str:
        if state == "handshake_failed":
            return self.engines[name].handshake_error or _WHY["absent"]
        if state != "refused":
            return _WHY[state]
        welcome, ours = self.engines[name].welcome, self._fingerprint or b""
        its = b"" if welcome is None else welcome.fingerprint
        return (
            f"its fingerprint is {its.hex()}, the others' is {ours.hex()}: "
            "it serves another model, or with other settings"
        )
