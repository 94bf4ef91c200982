"""The prompt modules of sequences: computed alone, once, then read by all sequences that name them.

    accepted -> awaits modules --all on the device--> leased with the sequence's own blocks
                  |      ^                               |
                  `- computed by sequences of the        `- one is gone again: awaits modules
                     engine's own, of the same flow

A module is a prefix of a namespace of its own (`messages.PromptModule`), so tiers, quotas, eviction
and restarts treat it like any other. A sequence's block table is the whole blocks of its modules,
in their order, followed by its own blocks, into which the modules' last tokens are copied:

    | module A, whole blocks | module B, whole blocks | end of A, end of B, own tokens ... |
    0                                            num_tokens

While some of a sequence's modules are computed, the others may be evicted. So what is there is held
for the first sequence that waits, and for no other: waiting ones never keep each other from room.
It is let go where no step can be computed, since it may be in the way of what runs. One whose
modules go again and again, since the cache has no room for all, is refused.

Knows: modules, leases, requests of the engine's own. Does not know: how a step reads a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from engine.errors import (
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    PromptTooLong,
    error_from_code,
)
from engine.link.codec import DecodeError, unpack_token_ids
from engine.link.messages import Event, Failed, Finished, Generate, PromptModule, SamplingParams
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath
from prefix_cache.tree.edge import NO_SLOTS, BlockIds
from storage.move import TokenCopy

if TYPE_CHECKING:
    from engine.sequences.sequence import Sequence

MOST_MODULES = 256  # of a request
MOST_ROUNDS = 4  # times that a sequence's modules are computed before it is refused

FailedSequence: TypeAlias = "tuple[Sequence, EngineError]"

_ALONE = SamplingParams(max_tokens=0, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class ModuleBlocks:
    """A module as the cache knows it."""

    module: PromptModule
    path: NamespacePath
    token_ids: TokenIds  # whole blocks
    whole_tokens: int  # tokens in whole blocks, without padding
    last_tokens: int  # tokens after these, which are copied


@dataclass(slots=True, eq=False)
class SequenceModules:
    """The modules of one sequence."""

    blocks: tuple[ModuleBlocks, ...]
    request: Generate
    is_awaited: bool = True  # some may not be on the device
    leases: tuple[Lease, ...] = ()  # as long as the sequence holds its own blocks
    block_ids: BlockIds = field(default_factory=lambda: NO_SLOTS)  # their whole blocks
    rounds: int = 0
    # Tokens of each module that were computed because this sequence came, by its namespace.
    computed: dict[bytes, int] = field(default_factory=dict)
    seconds: float = 0.0  # the share of steps that computed them

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the modules' whole blocks."""
        return sum(one.whole_tokens for one in self.blocks)

    @property
    def padded_tokens(self) -> int:
        """Number of tokens of the modules' blocks in the cache."""
        return sum(len(one.token_ids) for one in self.blocks)

    @property
    def last_tokens(self) -> int:
        """Number of tokens that are copied to the front of the sequence's own."""
        return sum(one.last_tokens for one in self.blocks)

    def whole_ids(self) -> TokenIds:
        """Return the tokens in the modules' whole blocks."""
        return np.concatenate([one.token_ids[: one.whole_tokens] for one in self.blocks])

    def copies(self, own: BlockIds, first: int, block_size: int) -> tuple[TokenCopy, ...]:
        """Return the copies of the modules' last tokens to `own` blocks, from token `first` on."""
        sources = [
            int(lease.blocks[-1]) * block_size + place
            for blocks, lease in zip(self.blocks, self.leases, strict=True)
            for place in range(blocks.last_tokens)
        ]
        return tuple(
            TokenCopy(source, int(own[at // block_size]) * block_size + at % block_size)
            for at, source in enumerate(sources)
            if at >= first
        )

    def lease(self, cache: PrefixCache, owner: str, now: float) -> bool:
        """Lease all modules; False if any is not whole on the device: nothing is held then."""
        held = list[Lease]()
        for blocks in self.blocks:
            lease = cache.read(blocks.path, blocks.token_ids, owner=owner, now=now, is_part=True)
            if lease is not None:
                held.append(lease)
            if lease is None or lease.num_blocks * cache.block_size < len(blocks.token_ids):
                for one in held:
                    cache.release(one, now=now)
                self.is_awaited = True
                return False
        self.leases = tuple(held)
        whole = [
            lease.blocks[: blocks.whole_tokens // cache.block_size]
            for blocks, lease in zip(self.blocks, held, strict=True)
        ]
        self.block_ids = np.concatenate(whole)
        return True

    def release(self, cache: PrefixCache, now: float) -> None:
        """Release the leases of all modules."""
        for lease in self.leases:
            cache.release(lease, now=now)
        self.leases, self.block_ids = (), NO_SLOTS

    @property
    def charged(self) -> int:
        """Number of the modules' tokens that were computed for the sequence; each counts once."""
        return sum(self.computed.values())

    def missing(self, cache: PrefixCache) -> list[ModuleBlocks]:
        """Return the modules that are not whole on the device."""
        return [
            one
            for one in self.blocks
            if cache.match(one.path, one.token_ids).found.device * cache.block_size
            < len(one.token_ids)
        ]


def modules_of(request: Generate, block_size: int, vocab_size: int) -> SequenceModules | None:
    """Return the modules of a request; None without any. Raise InvalidRequest for wrong ones."""
    if not request.modules:
        return None
    if len(request.modules) > MOST_MODULES:
        raise InvalidRequest(f"there are more than {MOST_MODULES} modules")
    blocks = tuple(_blocks(module, block_size, vocab_size) for module in request.modules)
    return SequenceModules(blocks, request)


def _blocks(module: PromptModule, block_size: int, vocab_size: int) -> ModuleBlocks:
    try:
        token_ids, positions = map(unpack_token_ids, (module.token_ids, module.positions))
    except DecodeError as error:
        raise InvalidRequest(str(error)) from error
    size, rest = divmod(len(token_ids), block_size)
    if rest or not size or len(positions) != len(token_ids):
        raise InvalidRequest("a module is whole blocks, at least one, each token at a position")
    if not (size - 1) * block_size < module.num_tokens <= len(token_ids):
        raise InvalidRequest("a module is padded by less than a block")
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise InvalidRequest("a module has a token id outside of the vocabulary")
    if len(module.namespace) != NAMESPACE_BYTES or len(module.block_keys) != size * KEY_BYTES:
        raise InvalidRequest("a module's namespace or block keys have a wrong length")
    path = NamespacePath.single(Namespace(module.namespace))
    whole = module.num_tokens // block_size * block_size
    return ModuleBlocks(module, path, token_ids, whole, module.num_tokens - whole)


@dataclass(slots=True)
class _Computing:
    """A module that a sequence of the engine's own computes."""

    request_id: str
    first: Sequence  # the sequence that came first, which is charged
    tokens: int  # of the module, without padding


class ModuleKeeper:
    """The modules that accepted sequences wait for. One owner thread."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._sequences: list[Sequence] = []  # accepted ones with modules; some may have ended
        self._computing: dict[bytes, _Computing] = {}  # by the modules' namespaces
        self._errors: dict[bytes, EngineError] = {}  # of modules that failed since the last turn
        self._numbers = itertools.count()
        self._first: Sequence | None = None  # the sequence whose modules are held
        self._held: dict[bytes, Lease] = {}  # by the modules' namespaces
        self._may_hold = True

    def add(self, sequence: Sequence) -> None:
        """Add an accepted sequence, if it has modules."""
        if sequence.modules is not None:
            self._sequences.append(sequence)

    def turn(
        self, alive: Collection[Sequence], now: float
    ) -> tuple[list[Generate], list[FailedSequence]]:
        """Return requests to start now, for missing modules, and sequences that are to fail."""
        if not self._sequences:
            return [], []
        there = set(alive)
        self._sequences = [one for one in self._sequences if one in there]
        if self._first not in there or (self._first is not None and self._first.lease is not None):
            self._let_go(now)
            self._first = None
        started, failed = list[Generate](), list[FailedSequence]()
        for sequence in self._sequences:
            modules = sequence.modules
            if modules is None or not modules.is_awaited or sequence.lease is not None:
                continue
            self._first = self._first or sequence
            try:
                new = self._new(sequence, modules, now)
            except EngineError as error:
                failed.append((sequence, error))
                continue
            modules.rounds += bool(new)
            started += [self._begin(one, sequence, modules.request) for one in new]
        self._errors.clear()
        return started, failed

    def ran(self, now: float, *, is_any: bool) -> None:
        """Note whether a step is computed; if not, what is held for the first may be in its way."""
        if not is_any:
            self._let_go(now)
        self._may_hold = is_any

    def _new(self, sequence: Sequence, modules: SequenceModules, now: float) -> list[ModuleBlocks]:
        """Return the modules to compute now for a sequence, of which none may be missing.

        Raises EngineError where one has failed, or they were computed too often.
        """
        error, size = self._error_of(modules), self._cache.block_size
        if error is not None:
            raise error
        if modules.padded_tokens // size + 1 > self._cache.quotas.most_kept(sequence.flow):
            raise PromptTooLong("the modules are more than the tenant's part of the cache holds")
        is_first = sequence is self._first
        missing = modules.missing(self._cache)
        if is_first and self._may_hold:
            self._hold([one for one in modules.blocks if one not in missing], sequence.flow, now)
        modules.is_awaited = bool(missing)
        if modules.rounds and not is_first:
            return []
        new = [one for one in missing if one.module.namespace not in self._computing]
        if new and modules.rounds == MOST_ROUNDS:
            raise EngineUnavailable("the modules do not stay in the cache", retry_after_s=1.0)
        return new

    def _hold(self, present: list[ModuleBlocks], owner: str, now: float) -> None:
        for one in present:
            if one.module.namespace not in self._held:
                lease = self._cache.read(
                    one.path, one.token_ids, owner=owner, now=now, is_part=True
                )
                if lease is not None:
                    self._held[one.module.namespace] = lease

    def _let_go(self, now: float) -> None:
        for lease in self._held.values():
            self._cache.release(lease, now=now)
        self._held.clear()

    def heard(self, event: Event) -> None:
        """Note the end of a sequence that computes a module; other events say nothing here."""
        if not isinstance(event, Finished | Failed):
            return
        found = [key for key, one in self._computing.items() if one.request_id == event.request_id]
        for namespace in found:
            computing = self._computing.pop(namespace)
            if isinstance(event, Failed):
                error = error_from_code(event.code, event.message, event.retry_after_s)
                self._errors[namespace] = error
            modules = computing.first.modules
            if modules is not None and isinstance(event, Finished):
                before = modules.computed.get(namespace, 0)
                tokens = min(event.computed_tokens, computing.tokens)
                modules.computed[namespace] = max(before, tokens)
                modules.seconds += event.engine_seconds

    def _error_of(self, modules: SequenceModules) -> EngineError | None:
        names = (one.module.namespace for one in modules.blocks)
        return next((self._errors[name] for name in names if name in self._errors), None)

    def _begin(self, blocks: ModuleBlocks, sequence: Sequence, request: Generate) -> Generate:
        module, request_id = blocks.module, f"module-{next(self._numbers)}"
        self._computing[module.namespace] = _Computing(request_id, sequence, module.num_tokens)
        return Generate(
            request_id=request_id,
            token_ids=module.token_ids,
            positions=module.positions,
            namespaces=((0, module.namespace),),
            block_keys=module.block_keys,
            flow=request.flow,
            weight=request.weight,
            priority=request.priority,
            sampling=_ALONE,
            loads=request.loads,
            cache_quota=request.cache_quota,
            is_counted=False,
            drafts=False,
            adapter=request.adapter,
        )
