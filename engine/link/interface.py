"""What a gateway may ask of an engine, whatever implements it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from engine.link.messages import Failed, Finished, FlowQuota, Generate, Role, Tokens, Welcome
from engine.link.query_messages import UNRECORDED, MarkedPrefix, Probed
from engine.link.stats_messages import EngineStats
from engine.link.view_messages import Overview, Prefixes, PrefixOrder, Sequences, TreeLevel

OnEnd: TypeAlias = Callable[[Finished | Failed], None]
"""Called with the engine's end of a request, once, when it comes."""


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """What is to stay on the device: whole blocks from position 0, in one namespace."""

    pin_id: str
    token_ids: bytes  # int32, little endian
    namespace: bytes
    block_keys: bytes


ReplicaState = Literal["ready", "stalled", "draining", "absent", "handshake_failed", "refused"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """Whether one of several engines takes requests; `why` it does not, "" where it does."""

    state: ReplicaState
    why: str
    engine_id: str | None = None  # of the connected engine
    role: Role = "both"  # likewise, or of the last one
    known_blocks: int = 0  # that its gateway knows it to have cached


class Engine(Protocol):
    """Implemented by `EngineClient`, by several of them together (`gateway.replicas`), and by
    `tests/doubles/engine/fake_engine.py`.
    """

    @property
    def welcome(self) -> Welcome | None:
        """What the connected engine is; None while none is connected."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether the connected engine's process has stopped: it may go on, or be given up."""
        ...

    @property
    def handshake_error(self) -> str | None:
        """Why whoever is at the engine's address hears nothing, in a line; None where it may.

        Of several engines it is told in `replicas`.
        """
        ...

    @property
    def replicas(self) -> Mapping[str, ReplicaHealth]:
        """The engines that this one consists of, by their names; none where it is one alone."""
        ...

    @property
    def router_answers(self) -> bool | None:
        """Whether the process that chooses among several engines answers; None without one."""
        ...

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield `Tokens` as they come, then one `Finished`.

        Raises a subclass of `EngineError` in place of the rest when the request failed. Closing the
        generator early cancels the request in the engine, and waits until that has ended it or is
        gone, also where the closing is cancelled. `on_end` is called however the request ends, but
        not if the engine dies before: before the generator is closed, or later where the engine
        stands still.
        """
        ...

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        """Divide the cache among these flows, now and in every engine that connects later.

        Without any flow, all share it.
        """
        ...

    async def stats(self, *, evictions: int = 0) -> EngineStats:
        """The engine's counters, and at most `evictions` of the last ones between flows.

        Raises EngineUnavailable while no engine is connected, as `flush` and `unpin` do.
        """
        ...

    async def overview(self, *, owners: int = 0, evictions: int = 0) -> Overview:
        """The counters alone, and what is largest: at most `owners` of each tier and flows.

        Costs the engine about as much however many flows there are. Raises as `stats` does.
        """
        ...

    async def sequences(self, limit: int) -> Sequences:
        """At most `limit` of the sequences that are alive, the oldest first; raises likewise."""
        ...

    async def tree(self, node: str | None, limit: int) -> TreeLevel:
        """At most `limit` of what lies below a node of the tree; None: of the namespaces."""
        ...

    async def prefixes(self, order: PrefixOrder, limit: int) -> Prefixes:
        """At most `limit` of the hottest or of the most wasteful prefixes."""
        ...

    async def flush(
        self,
        *,
        flow: str | None = None,
        namespace: bytes | None = None,
        flush_id: str = UNRECORDED,
    ) -> int:
        """Drop cached prefixes of a flow, a namespace, or all; returns how many blocks.

        A `flush_id` says that it is one of those that `flush_recorded` names.
        """
        ...

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        """Do those of all recorded flushes that are not done: id to flow, None is everything.

        Not waited for: an engine that is connected does them before what is asked of it later.
        """
        ...

    async def pin(self, prefix: PinnedPrefix) -> int:
        """Keep a prefix on the device for good; returns its blocks once they are there.

        Raises PinTooLarge, NoRoomToPin, and what `generate` raises. May be repeated.
        """
        ...

    async def unpin(self, pin_id: str) -> int:
        """Let a pinned prefix go; returns its blocks, 0 where it was not pinned."""
        ...

    async def probe(self, token_ids: bytes, namespaces: tuple[tuple[int, bytes], ...]) -> Probed:
        """What a request with this prompt would find in the cache; changes nothing.

        `token_ids` are int32, little endian. Raises InvalidRequest.
        """
        ...

    async def marked(self, flow: str) -> list[MarkedPrefix]:
        """The prefixes that a flow has marked and that are retained, the last one first."""
        ...

    async def forget_marked(
        self, flow: str, prefix_id: bytes, *, is_marked: bool = True
    ) -> int | None:
        """Forget a marked prefix; returns the blocks that went, None where there is none.

        `is_marked` false: also one that is not marked; for what another engine had marked.
        """
        ...
