"""The interface of an engine to a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.errors import EngineError
from engine.link.event_messages import Failed, Finished, Tokens
from engine.link.messages import FlowQuota, Generate, Role, Welcome
from engine.link.query import Query, R

OnEnd: TypeAlias = Callable[[Finished | Failed], None]
"""A function that is called once, with the engine's last event of a request."""


ANSWER_S = 5.0  # seconds; short, so a hanging engine does not hang the routes that report it

ReplicaState = Literal["ready", "stalled", "draining", "absent", "handshake_failed", "refused"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """The health of one of several engines. `why` is the reason if the engine takes no requests."""

    state: ReplicaState
    why: str
    engine_id: str | None = None
    role: Role = "both"  # role of the connected engine, or of the engine connected last
    known_blocks: int = 0  # cached blocks known to the gateway


@dataclass(frozen=True, slots=True)
class Restarted:
    """An event that voids a request's earlier events, since the stream continues with a new answer.

    A reader that has shown any of the earlier events raises `error`, which ended the earlier
    answer.
    """

    error: EngineError


class Engine(Protocol):
    """An interface to an engine.

    `EngineClient` implements it, and so do several clients together (`gateway.replicas`).
    """

    @property
    def welcome(self) -> Welcome | None:
        """The description of the connected engine, or None if no engine is connected."""
        ...

    @property
    def is_stalled(self) -> bool:
        """True if the connected engine's process is stopped, and may be resumed."""
        ...

    @property
    def handshake_error(self) -> str | None:
        """The handshake error at the engine's address, as one line, or None.

        With several engines, `replicas` has their errors.
        """
        ...

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """The engines behind this interface, by name. Empty for a single engine."""
        ...

    @property
    def router_answers(self) -> bool | None:
        """True if the routing process of several engines answers. None without such a process."""
        ...

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished | Restarted, None]:
        """Yield `Tokens` as they come, then one `Finished`.

        Several engines may also yield `Restarted`. Raises a subclass of `EngineError` when the
        request fails. Closing the generator early cancels the request in the engine. The close
        waits until the engine has ended the request or is gone, even if the closing task is
        cancelled. `on_end` is called when the engine ends the request, for any reason, unless the
        engine dies first.
        """
        ...

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        """Divide the cache among these flows, now and in every engine that connects later.

        If `flows` is empty, all flows share the cache.
        """
        ...

    async def ask(self, query: Query[R], within_s: float | None = ANSWER_S) -> R:
        """Return the reply to a query within `within_s` seconds, or without limit.

        Raises EngineUnavailable if no engine is connected or the reply takes longer. Raises the
        engine's error if it refuses the query (`Reply.error`).
        """
        ...

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        """Do all recorded flushes that are not done, without waiting.

        The flushes map an id to a flow, or to None for everything. A connected engine does them
        before all later requests and queries.
        """
        ...
