"""The prompt modules for which sequences wait. Each is computed once for all of them.

    accepted -> awaits modules --all on the device--> leased with the sequence's own blocks
                  |      ^                               |
                  `- computed by sequences that the       `- if a module is evicted: awaits again
                     engine adds for the same flow

A module that attends to another module, the head, waits for the head. The first sequence that waits
for a module is charged for it. If that sequence ends, the next waiting sequence is charged. A
module for which no sequence waits any more is cancelled. Only a few modules of a flow are computed
at the same time, so that the queue has places for other requests.

The cached modules of the first waiting sequences are leased, so that they are not evicted while the
others are computed (`held_modules.py`). If no step can be computed, these leases are released. A
sequence whose modules are evicted repeatedly is refused.

Flows take turns, and only a few modules are looked up between two steps, so that the modules of one
flow do not delay other flows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import EngineError, EngineUnavailable, PromptTooLong, error_from_code
from engine.link.event_messages import Event, Failed, Finished
from engine.link.messages import Generate, SamplingParams
from engine.sequences.held_modules import HeldModules
from engine.sequences.modules import ModuleBlocks, ModuleWork, SequenceModules
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache

MOST_BEGUN = 4  # how often at most a prompt module is computed for one sequence
AT_A_TIME = 64  # maximum number of a flow's prompt modules that are computed at the same time
AT_ONCE = 128  # maximum number of prompt modules looked up between two steps

_ALONE = SamplingParams(max_tokens=0, temperature=0.0, ignore_eos=True)


class ModuleTurn(NamedTuple):
    """The requests to start, the ids of requests to cancel, and the sequences that fail."""

    started: list[Generate]
    cancelled: list[str]
    failed: list[tuple[Sequence, EngineError]]


@dataclass(slots=True)
class _Computing:
    request_id: str
    blocks: ModuleBlocks
    flow: str
    payer: Sequence  # the sequence that is charged
    # The sequence that computes the module; None until it is accepted.
    sequence: Sequence | None = None
    # The sequences that wait, including the payer until it ends.
    waiting: list[Sequence] = field(default_factory=list)
    next: list[Sequence] = field(default_factory=list)


class ModuleKeeper:
    """The prompt modules for which accepted sequences wait. Used by one thread only."""

    def __init__(self, cache: PrefixCache, at_a_time: int = AT_A_TIME) -> None:
        self._cache = cache
        self._at_a_time = at_a_time
        self._under_way = defaultdict[str, set[bytes]](set)
        self._sequences: list[Sequence] = []
        self._flows: deque[str] = deque()
        self._computing: dict[bytes, _Computing] = {}
        self._names: dict[str, bytes] = {}
        self._numbers = itertools.count()
        self._held = HeldModules(cache)
        self._may_hold = True

    def add(self, sequence: Sequence) -> None:
        """Add an accepted sequence if it has prompt modules or computes a module."""
        if sequence.modules is not None:
            self._sequences.append(sequence)
        if sequence.request_id in self._names:
            computing = self._computing[self._names[sequence.request_id]]
            if computing.sequence is None:
                computing.sequence = sequence
                _charge(computing)

    def turn(self, alive: Collection[Sequence], now: float) -> ModuleTurn:
        """Look up the prompt modules of some sequences. Call before each step.

        The result starts missing modules, and cancels those for which no sequence waits.
        """
        made = ModuleTurn([], [], [])
        if not self._sequences and not self._computing:
            return made
        there = set(alive)
        self._sequences = [one for one in self._sequences if one in there]
        self._held.end(there, now)
        for sequence, modules in self._in_turn():
            self._held.offer(sequence)
            try:
                new = self._new(sequence, modules, now)
            except EngineError as error:
                made.failed.append((sequence, error))
                continue
            made.started.extend(self._begin(one, sequence, modules) for one in new)
        # Failed sequences have ended, so they are not cancelled too.
        failed = {sequence.request_id for sequence, _ in made.failed}
        made.cancelled.extend(one for one in self._unawaited(there) if one not in failed)
        return made

    def ran(self, now: float, *, goes_on: bool) -> None:
        """Release the leases of prompt modules, unless a step or a copy is running (`goes_on`).

        These leases may be the reason why no step can be computed.
        """
        if not goes_on:
            self._held.let_go(now)
        self._may_hold = goes_on

    def heard(self, event: Event) -> None:
        """Handle the end of a sequence that computes a prompt module. Ignore other events."""
        if not isinstance(event, Finished | Failed) or event.request_id not in self._names:
            return
        namespace = self._names.pop(event.request_id)
        ended = self._computing.pop(namespace)
        self._under_way[ended.flow].discard(namespace)
        if not self._under_way[ended.flow]:
            del self._under_way[ended.flow]
        for sequence in (*ended.waiting, *ended.next):
            _modules_of(sequence).awaits.discard(namespace)
        if isinstance(event, Failed):
            for sequence in ended.waiting:
                error = error_from_code(event.code, event.message, event.retry_after_s)
                _modules_of(sequence).error = error

    def _in_turn(self) -> Iterator[tuple[Sequence, SequenceModules]]:
        """Yield the sequences whose modules to look up now, flow by flow, up to AT_ONCE modules.

        First sequences, whose cached modules are leased, come in addition, up to AT_ONCE modules.
        Within a flow, modules that are being computed come before sequences that may wait for them.
        """
        yield from self._held.waiting(AT_ONCE)
        waiting = dict[str, deque[tuple[Sequence, SequenceModules]]]()
        for sequence in self._sequences:
            modules = sequence.modules
            if modules is None or not modules.is_awaited or sequence.lease is not None:
                continue
            is_due = not modules.awaits or modules.error is not None
            if is_due and sequence not in self._held:
                due, computes = (sequence, modules), sequence.request_id in self._names
                of_flow = waiting.setdefault(sequence.flow, deque())
                of_flow.appendleft(due) if computes else of_flow.append(due)
        known = set(self._flows)
        self._flows.extend(flow for flow in waiting if flow not in known)
        left = AT_ONCE
        while self._flows and left > 0:
            flow = self._flows.popleft()
            if flow in waiting:
                found = waiting[flow].popleft()
                left -= len(found[1].blocks)
                if not waiting[flow]:
                    del waiting[flow]
                self._flows.append(flow)
                yield found

    def _new(self, sequence: Sequence, modules: SequenceModules, now: float) -> list[ModuleBlocks]:
        """Return the prompt modules to compute now for a sequence.

        Raises EngineError if a module has failed, does not fit, or was computed too often.
        """
        if modules.error is not None:
            raise modules.error
        size = self._cache.block_size
        if modules.padded_tokens // size + 1 > self._cache.quotas.most_kept(sequence.flow):
            raise PromptTooLong("the modules are more than the tenant's part of the cache holds")
        is_first, computes = sequence in self._held, sequence.request_id in self._names
        head, blocks = modules.head, modules.blocks
        if head is not None and self._is_missing(head):
            blocks = blocks[:1]
        coming = [one for one in blocks if one.module.namespace in self._computing]
        others = [one for one in blocks if one.module.namespace not in self._computing]
        missing = [one for one in others if self._is_missing(one)]
        if is_first and self._may_hold:
            gone = {one.module.namespace for one in missing}
            present = (one for one in others if one.module.namespace not in gone)
            self._held.hold(sequence, present, now)
        modules.is_awaited = bool(coming or missing)
        for one in coming:
            self._await(one.module.namespace, sequence, modules)
        is_next = is_first or computes
        if is_next and any(modules.begun[one.module.namespace] == MOST_BEGUN for one in missing):
            raise EngineUnavailable("the modules do not stay in the cache", retry_after_s=1.0)
        wanted = [one for one in missing if is_next or not modules.begun[one.module.namespace]]
        return wanted if computes else self._at_once(wanted, sequence, modules)

    def _at_once(
        self, wanted: list[ModuleBlocks], sequence: Sequence, modules: SequenceModules
    ) -> list[ModuleBlocks]:
        """Return those of the `wanted` prompt modules that the flow may start to compute now.

        If none may start, make the sequence wait.
        """
        under_way = self._under_way.get(sequence.flow, set())
        room = max(self._at_a_time - len(under_way), 0)
        if under_way and not room and wanted and not modules.awaits:
            namespace = next(iter(under_way))
            modules.awaits.add(namespace)
            self._computing[namespace].next.append(sequence)
        return wanted[:room]

    def _is_missing(self, blocks: ModuleBlocks) -> bool:
        found = self._cache.tree.match(blocks.path, blocks.token_ids).found
        return found.device * self._cache.block_size < len(blocks.token_ids)

    def _begin(
        self, blocks: ModuleBlocks, sequence: Sequence, modules: SequenceModules
    ) -> Generate:
        module, request, request_id = blocks.module, modules.request, self._new_id()
        payer = self._payer(sequence)
        self._computing[module.namespace] = _Computing(request_id, blocks, sequence.flow, payer)
        self._names[request_id] = module.namespace
        self._under_way[sequence.flow].add(module.namespace)
        modules.begun[module.namespace] += 1
        self._await(module.namespace, sequence, modules)
        return Generate(
            request_id=request_id,
            token_ids=module.token_ids,
            positions=module.positions,
            namespaces=((0, module.namespace),),
            block_keys=module.block_keys,
            flow=request.flow,
            weight=request.weight,
            priority=request.priority,
            modules=() if module.head_tokens is None else request.modules[:1],
            sampling=_ALONE,
            loads=request.loads,
            cache_quota=request.cache_quota,
            is_counted=False,
            drafts=False,
            adapter=request.adapter,
        )

    def _new_id(self) -> str:
        return f"module-{next(self._numbers)}"

    def _await(self, namespace: bytes, sequence: Sequence, modules: SequenceModules) -> None:
        if namespace not in modules.awaits:
            modules.awaits.add(namespace)
            self._computing[namespace].waiting.append(sequence)

    def _unawaited(self, there: set[Sequence]) -> Iterator[str]:
        """Yield the ids of requests that compute modules for which no sequence waits any more.

        If only the charged sequence has ended, charge the next waiting sequence from now on.
        """
        for computing in self._computing.values():
            if computing.payer in there:
                continue
            heir = next((one for one in computing.waiting if one in there), None)
            if heir is None:
                yield computing.request_id
            else:
                computing.payer = self._payer(heir)
                _charge(computing)

    def _payer(self, sequence: Sequence) -> Sequence:
        if sequence.request_id in self._names:
            return self._computing[self._names[sequence.request_id]].payer
        return sequence


def _modules_of(sequence: Sequence) -> SequenceModules:
    assert sequence.modules is not None, "others wait for no module"
    return sequence.modules


def _charge(computing: _Computing) -> None:
    sequence, modules = computing.sequence, computing.payer.modules
    if sequence is not None and modules is not None:
        module = computing.blocks.module
        start, seconds = sequence.prompt_end, sequence.engine_seconds
        work = ModuleWork(sequence, module, start, seconds)
        modules.work.setdefault(module.namespace, []).append(work)
