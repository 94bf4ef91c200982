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
"""A function that is called once, with the last event that the engine sends for a request."""


# Seconds to wait for a reply; short, so that health routes do not hang with the engine.
ANSWER_S = 5.0

ReplicaState = Literal["ready", "stalled", "draining", "absent", "handshake_failed", "refused"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """The health of one of several engines. `why` is the reason if it accepts no requests."""

    state: ReplicaState
    why: str
    engine_id: str | None = None
    role: Role = "both"  # role of the engine that is or was last connected
    known_blocks: int = 0  # number of cached blocks of which the gateway knows


@dataclass(frozen=True, slots=True)
class Restarted:
    """An event: the earlier events of the request are void, and a new answer begins.

    `error` ended the earlier answer. A reader that has already shown any of the earlier events
    raises `error`.
    """

    error: EngineError


class Engine(Protocol):
    """An interface to an engine.

    `EngineClient` implements it for one engine, and `gateway.replicas` for several.
    """

    @property
    def welcome(self) -> Welcome | None:
        """The description of the connected engine, or None if no engine is connected."""
        ...

    @property
    def is_stalled(self) -> bool:
        """True if the connected engine's process is stopped but may be resumed."""
        ...

    @property
    def handshake_error(self) -> str | None:
        """The error of the handshake with the engine, as one line, or None.

        With several engines, see `replicas`.
        """
        ...

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """The health of several engines by name. Empty for a single engine."""
        ...

    @property
    def router_answers(self) -> bool | None:
        """True if the process that routes to engines answers. None without such a process."""
        ...

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished | Restarted, None]:
        """Yield `Tokens` as they arrive, then one `Finished`.

        With several engines, the generator may also yield `Restarted`. Raises a subclass of
        `EngineError` if the request fails. Closing the generator early cancels the request in the
        engine. The close waits until the engine has ended the request or is gone, even if the
        closing task is cancelled. `on_end` is called when the engine ends the request for any
        reason, but not if the engine dies before.
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
        """Order the engine to do the recorded flushes that it has not done, without waiting.

        `flushes` maps a flush id to a flow, or to None for a flush of everything. The connected
        engine does the flushes before all later requests and queries.
        """
        ...
