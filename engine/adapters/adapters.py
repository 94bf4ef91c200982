"""The LoRA adapters of requests: their slots on the device, and the requests that wait.

    accepted --not in host memory: read--> --no slot is free: wait--> in a slot --> may start

A slot belongs to its adapter while a request that uses the adapter is alive. Later another adapter
may take the slot. Requests get slots in order of arrival. A request whose adapter is in a slot may
overtake a waiting request that arrived at most PATIENCE_S ago. If several flows use adapters, a
flow that has slots leaves one slot free for other flows. If a flow drops an adapter, the adapter is
forgotten unless another flow has used it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from engine.adapters.host_adapters import HostAdapters
from engine.errors import AdapterNotServed, EngineError
from engine.link.messages import AdapterUse
from engine.link.query_messages import AdapterRead, ReadAdapter
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.errors import AdapterRefused
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace

PATIENCE_S = 0.5
NO_ADAPTERS = "this engine serves no adapters: it has no folder of them (--adapters-dir)"
FEW_NAMESPACES = 1024  # number of stored namespaces from which those without blocks are forgotten


class DeviceSlots(Protocol):
    """An interface to the adapters' slots on the device. Slot 0 never has an adapter."""

    @property
    def num_slots(self) -> int:
        """The number of slots, including slot 0."""
        ...

    def load(self, slot: int, adapter: Adapter) -> None:
        """Copy an adapter to a slot, after all earlier launches and before all later launches."""
        ...


class AdapterParts(NamedTuple):
    """The host memory and device slots of an engine that serves adapters."""

    host: HostAdapters
    device: DeviceSlots


_Used = defaultdict[bytes, set[str]]  # adapter's digest -> flows whose requests use it


class _Asked(NamedTuple):
    client: bytes
    query: ReadAdapter
    reading: Future[Adapter]


class Adapters:
    """The adapters of one engine's requests. Used by one thread only."""

    def __init__(self, parts: AdapterParts | None) -> None:
        """Serve adapters from `parts`. Without `parts`, refuse every request with an adapter."""
        self._parts = parts
        # slots by digest; the slot given longest ago comes first
        self._slots = OrderedDict[bytes, int]()
        num_slots = 0 if parts is None else parts.device.num_slots
        self._free = list(range(num_slots - 1, 0, -1))
        self._waiting: list[Sequence] = []
        self._first_flow: str | None = None
        self._is_shared = False
        self._asked: list[_Asked] = []
        # adapter's digest -> flows that have asked to read or use it; evicted adapters have no
        # entry
        self._flows: dict[bytes, set[str]] = {}
        self._namespaces: dict[Namespace, bytes] = {}
        self._most_namespaces = FEW_NAMESPACES

    def add(self, sequence: Sequence, present: Container[Namespace]) -> None:
        """Add an accepted sequence, which waits if it uses an adapter.

        `present` are the namespaces that have blocks in the cache. The other namespaces are
        forgotten from time to time.
        """
        if sequence.adapter is None:
            return
        spans = [one for _, one in sequence.path.spans]
        # Earlier spans were computed without adapter.
        own = spans[-1:] if sequence.adapter.start else spans
        used = dict.fromkeys(own, sequence.adapter.digest)
        if len(self._namespaces) >= self._most_namespaces:
            kept = {one: digest for one, digest in self._namespaces.items() if one in present}
            self._namespaces = kept
            self._most_namespaces = max(2 * len(kept), FEW_NAMESPACES)
        self._namespaces |= used
        self._note(sequence.adapter.digest, sequence.flow)
        self._waiting.append(sequence)
        self._first_flow = self._first_flow or sequence.flow
        self._is_shared = self._is_shared or sequence.flow != self._first_flow

    def check(self, adapter: AdapterUse | None) -> None:
        """Raise AdapterNotServed if `adapter` is given but the engine serves no adapters."""
        if adapter is not None and self._parts is None:
            raise AdapterNotServed(NO_ADAPTERS)

    def give(self, alive: Collection[Sequence], now: float) -> list[tuple[Sequence, EngineError]]:
        """Give slots to waiting sequences in `alive`. Return sequences whose adapter is refused."""
        if self._parts is None or not (self._waiting or self._parts.host.under_way):
            return []
        there = set(alive)
        waiting = [one for one in self._waiting if one in there]
        self._parts.host.forget_unwanted(self._wanted(waiting))
        failed, self._waiting = list[tuple[Sequence, EngineError]](), []
        since: float | None = None
        used = _used(there)
        for sequence in waiting:
            assert sequence.adapter is not None, "others do not wait"
            is_behind = since is not None and now - since > PATIENCE_S
            try:
                adapter = self._parts.host.get(*_named(sequence.adapter))
            except AdapterRefused as error:
                failed.append((sequence, AdapterNotServed(str(error))))
                continue
            if adapter is not None and not is_behind:
                sequence.adapter_slot = self._slot(adapter, sequence.flow, used)
            if not sequence.adapter_slot:
                self._waiting.append(sequence)
                if adapter is not None and since is None and self._may_take(sequence.flow, used):
                    since = sequence.arrived
        return failed

    def _wanted(self, waiting: Iterable[Sequence]) -> set[bytes]:
        read = (one.reading for one in self._asked if one.reading.done())
        asked = {one.result().digest for one in read if one.exception() is None}
        return asked | {one.adapter.digest for one in waiting if one.adapter}

    def _may_take(self, flow: str, used: _Used) -> bool:
        assert self._parts is not None
        free = self._parts.device.num_slots - 1 - len(used)
        has_any = any(flow in flows for flows in used.values())
        return free > 1 or not (has_any and self._is_shared)

    def _slot(self, adapter: Adapter, flow: str, used: _Used) -> int:
        """Return the device slot of an adapter, and add `flow` to the adapter's flows in `used`.

        If no slot has the adapter yet, copy it to a free slot. Return 0 if no slot is free.
        """
        assert self._parts is not None
        digest = adapter.digest
        if digest not in self._slots:
            if not self._may_take(flow, used):
                return 0
            if not self._free:
                unused = next((one for one in self._slots if one not in used), None)
                if unused is None:
                    return 0
                self._free.append(self._slots.pop(unused))
            self._parts.device.load(self._free[-1], adapter)
            self._slots[digest] = self._free.pop()
        self._slots.move_to_end(digest)
        used[digest].add(flow)
        return self._slots[digest]

    @property
    def is_asked(self) -> bool:
        """True while a client waits for an adapter to be read."""
        return bool(self._asked)

    def ask(self, client: bytes, query: ReadAdapter) -> None:
        """Start to read an adapter for a client. The method `answers` yields the answer later."""
        if self._parts is None:
            reading = Future[Adapter]()
            reading.set_exception(AdapterRefused(NO_ADAPTERS))
        else:
            reading = self._parts.host.read(query.path)
        self._asked.append(_Asked(client, query, reading))

    def answers(self) -> Iterator[tuple[bytes, AdapterRead]]:
        """Yield the answers to clients whose adapters have been read or refused."""
        for one in [one for one in self._asked if one.reading.done()]:
            answer = self._answer(one)
            if answer is not None:
                self._asked.remove(one)
                yield one.client, answer

    def _answer(self, asked: _Asked) -> AdapterRead | None:
        query = asked.query
        try:
            adapter = asked.reading.result()
            if self._parts is not None and self._parts.host.take(asked.reading, query.path) is None:
                return None
            if query.flow:
                self._note(adapter.digest, query.flow)
        except AdapterRefused as error:
            code = AdapterNotServed.code
            return AdapterRead(query_id=query.query_id, code=code, message=str(error))
        return AdapterRead(
            query_id=query.query_id,
            digest=adapter.digest,
            rank=adapter.rank,
            num_bytes=adapter.num_bytes,
            invocation=adapter.invocation,
        )

    def _note(self, digest: bytes, flow: str) -> None:
        if digest not in self._flows:
            there = {*self._slots, *(() if self._parts is None else self._parts.host.digests)}
            there |= {one.adapter.digest for one in self._waiting if one.adapter}
            self._flows = {one: flows for one, flows in self._flows.items() if one in there}
        self._flows.setdefault(digest, set()).add(flow)

    def drop(self, digest: bytes, flow: str, alive: Collection[Sequence]) -> set[Namespace]:
        """Forget an adapter unless another flow has it.

        Return the namespaces in which requests have used the adapter. Requests that use the adapter
        keep its slot until they end.
        """
        others = self._flows.get(digest, set()) - {flow}
        is_used = any(one.adapter and one.adapter.digest == digest for one in alive)
        if others:
            self._flows[digest] = others
        elif self._parts is not None:
            self._parts.host.forget(digest)
            if not is_used:
                self._flows.pop(digest, None)
                if digest in self._slots:
                    self._free.append(self._slots.pop(digest))
        return {one for one, used_with in self._namespaces.items() if used_with == digest}

    def drop_all(self, flow: str, alive: Collection[Sequence]) -> None:
        """Forget the adapters that only this flow has used. Call again when its requests ended."""
        for digest in [one for one, flows in self._flows.items() if flow in flows]:
            self.drop(digest, flow, alive)


def _used(alive: Collection[Sequence]) -> _Used:
    used = defaultdict[bytes, set[str]](set)
    for one in alive:
        if one.adapter and one.adapter_slot:
            used[one.adapter.digest].add(one.flow)
    return used


def _named(adapter: AdapterUse) -> tuple[bytes, str]:
    return adapter.digest, adapter.path
