"""The prompt modules of one sequence: their KV blocks, their leases and their cost.

A prompt module is a prefix in a separate namespace, so the cache treats it like any prefix. The
block table of a sequence begins with the whole blocks of its modules. Then come the sequence's own
blocks, which begin with copies of the modules' remaining tokens:

    | head, whole blocks | module A, whole blocks | B | end of head, start and end of A, ... own |
    0                                            num_tokens

The head is the first module of a request. A module that attends to the head is computed by a
sequence whose only module is the head. A sequence is charged for the module tokens that were
computed for it.

Elsewhere: the start of modules' computation (`module_keeper`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np

from engine.errors import EngineError, InvalidRequest
from engine.link.codec import DecodeError, unpack_token_ids
from engine.link.messages import Generate
from engine.link.prompt_module import PromptModule
from engine.link.stats.tier_stats import TierTokens
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath
from prefix_cache.tree.edge import NO_SLOTS, BlockIds
from storage.move import TokenCopy

MOST_MODULES = 256  # maximum number of prompt modules of a request
TOKEN_BYTES = 4

_SHAPE = "a module is whole blocks, at least one, each token at a position"


@dataclass(frozen=True, slots=True)
class ModuleBlocks:
    """A prompt module, with its path in the cache and its tokens."""

    module: PromptModule
    path: NamespacePath
    token_ids: TokenIds
    whole: tuple[range, ...]  # indices of the tokens that are read in place
    copied: tuple[int, ...]  # indices of the tokens that are copied


class ModulePrefill(Protocol):
    """An interface to the progress of a sequence that computes a prompt module."""

    @property
    def found(self) -> TierTokens:
        """The tokens that the cache had when the sequence started."""
        ...

    @property
    def fetched(self) -> int:
        """The number of tokens that another engine sent."""
        ...

    @property
    def prompt_end(self) -> int:
        """The number of prompt tokens that are computed, cached or fetched so far."""
        ...

    @property
    def engine_seconds(self) -> float:
        """The sequence's share of the duration of its steps so far, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class ModuleWork:
    """The work on a prompt module for which one sequence is charged.

    Tokens before `start` are not charged.
    """

    computing: ModulePrefill
    module: PromptModule
    start: int = 0
    seconds_before: float = 0.0

    @property
    def computed(self) -> int:
        """The number of tokens computed so far at or after `start` to which prompts attend."""
        return self.module.own_between(self._first, self.computing.prompt_end)

    @property
    def charged(self) -> int:
        """The number of all tokens computed so far at or after `start`."""
        return max(self.computing.prompt_end - self._first, 0)

    @property
    def _first(self) -> int:
        return max(self.start, self.computing.found.total + self.computing.fetched)

    @property
    def loaded(self) -> TierTokens:
        """The module's tokens that were loaded from lower tiers."""
        host, disk = self.computing.found.host, self.computing.found.disk
        head_tokens = self.module.head_tokens or 0
        of_host = min(host, head_tokens)
        return TierTokens(0, host - of_host, max(disk - head_tokens + of_host, 0))

    @property
    def seconds(self) -> float:
        """The seconds of steps that these tokens have taken so far."""
        return self.computing.engine_seconds - self.seconds_before


@dataclass(slots=True, eq=False)
class SequenceModules:
    """The prompt modules of one sequence."""

    blocks: tuple[ModuleBlocks, ...]
    request: Generate
    is_awaited: bool = True  # False once all modules are on the device
    leases: tuple[Lease, ...] = ()  # leases of all modules, released with the sequence's own lease
    block_ids: BlockIds = field(default_factory=lambda: NO_SLOTS)
    begun: Counter[bytes] = field(default_factory=Counter)
    awaits: set[bytes] = field(default_factory=set)  # namespaces of modules that are being computed
    error: EngineError | None = None
    # The work charged to the sequence, by the module's namespace. A module has one entry for each
    # time at which the sequence became the one to be charged.
    work: dict[bytes, list[ModuleWork]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the prompt modules' whole blocks."""
        return sum(len(part) for one in self.blocks for part in one.whole)

    @property
    def padded_tokens(self) -> int:
        """The number of tokens of all modules, including padding."""
        return sum(len(one.token_ids) for one in self.blocks)

    @property
    def copied_tokens(self) -> int:
        """The number of module tokens that are copied to the sequence's own blocks."""
        return sum(len(one.copied) for one in self.blocks)

    @property
    def head(self) -> ModuleBlocks | None:
        """The module to which other modules attend, or None if there is none."""
        has_head = any(one.module.head_tokens is not None for one in self.blocks)
        return self.blocks[0] if has_head else None

    def whole_ids(self) -> TokenIds:
        """Return the tokens in the modules' whole blocks."""
        parts = ((one.token_ids, part) for one in self.blocks for part in one.whole)
        return np.concatenate([ids[part.start : part.stop] for ids, part in parts])

    def copies(self, own: BlockIds, first: int, block_size: int) -> tuple[TokenCopy, ...]:
        """Return the copies of module tokens to the blocks `own`. Skip the first `first` tokens."""
        sources = [
            int(lease.blocks[place // block_size]) * block_size + place % block_size
            for blocks, lease in zip(self.blocks, self.leases, strict=True)
            for place in blocks.copied
        ]
        return tuple(
            TokenCopy(source, int(own[at // block_size]) * block_size + at % block_size)
            for at, source in enumerate(sources)
            if at >= first
        )

    def lease(self, cache: PrefixCache, owner: str, now: float) -> bool:
        """Lease all prompt modules.

        If not all blocks of all modules are on the device, lease nothing and return False.
        """
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
        size = cache.block_size
        whole = [
            lease.blocks[part.start // size : part.stop // size]
            for blocks, lease in zip(self.blocks, held, strict=True)
            for part in blocks.whole
        ]
        self.block_ids = np.concatenate(whole)
        return True

    def release(self, cache: PrefixCache, now: float) -> None:
        """Release the leases of all prompt modules."""
        for lease in self.leases:
            cache.release(lease, now=now)
        self.leases, self.block_ids = (), NO_SLOTS

    @property
    def computed(self) -> int:
        """The number of module tokens computed for the sequence. Each token counts once."""
        return sum(max(one.computed for one in rounds) for rounds in self.work.values())

    @property
    def charged(self) -> int:
        """The same number with scaffolds and padding, which take as long to compute."""
        return sum(max(one.charged for one in rounds) for rounds in self.work.values())

    @property
    def loaded(self) -> TierTokens:
        """The module tokens that were loaded from lower tiers for the sequence."""
        return sum((rounds[0].loaded for rounds in self.work.values()), TierTokens())

    @property
    def seconds(self) -> float:
        """The share of steps' duration for modules computed for the sequence, in seconds."""
        return sum(one.seconds for rounds in self.work.values() for one in rounds)


def modules_of(request: Generate, block_size: int, vocab_size: int) -> SequenceModules | None:
    """Return a request's prompt modules, or None if it has none. Raises InvalidRequest."""
    if not request.modules:
        return None
    if len(request.modules) > MOST_MODULES:
        raise InvalidRequest(f"there are more than {MOST_MODULES} modules")
    _check_heads(request.modules, block_size)
    try:  # all in one call, because making hundreds of arrays takes milliseconds
        token_ids = unpack_token_ids(b"".join(one.token_ids for one in request.modules))
    except DecodeError as error:
        raise InvalidRequest(str(error)) from error
    blocks, end = list[ModuleBlocks](), 0
    for module in request.modules:
        start, end = end, end + len(module.token_ids) // TOKEN_BYTES
        blocks.append(_blocks(module, token_ids[start:end], block_size))
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise InvalidRequest("a module has a token id outside of the vocabulary")
    return SequenceModules(tuple(blocks), request)


def _check_heads(modules: tuple[PromptModule, ...], block_size: int) -> None:
    """Check that each module with a head begins with the last tokens of the head module.

    The first module must have no head. Raises InvalidRequest.
    """
    first, *others = modules
    last = first.num_tokens % block_size
    if first.head_tokens is not None or any(one.head_tokens not in (None, last) for one in others):
        raise InvalidRequest("a module begins with the last tokens of the request's first module")
    if first.scaffolds and any(one.head_tokens is not None for one in others):
        raise InvalidRequest("a module to which others attend has no scaffolds")
    if any(one.own_tokens < 1 for one in modules):
        raise InvalidRequest("a module has a token of its own")


def _blocks(module: PromptModule, token_ids: TokenIds, block_size: int) -> ModuleBlocks:
    size, rest = divmod(len(module.token_ids), TOKEN_BYTES * block_size)
    if rest or not size or len(module.positions) != len(module.token_ids):
        raise InvalidRequest(_SHAPE)
    if not (size - 1) * block_size < module.num_tokens <= size * block_size:
        raise InvalidRequest("a module is padded by less than a block")
    if len(module.namespace) != NAMESPACE_BYTES or len(module.block_keys) != size * KEY_BYTES:
        raise InvalidRequest("a module's namespace or block keys have a wrong length")
    edges = [module.head_tokens or 0, *chain.from_iterable(module.scaffolds), module.num_tokens]
    if edges != sorted(edges):
        raise InvalidRequest("a module's scaffolds are of its own tokens, in order")
    path = NamespacePath.single(Namespace(module.namespace))
    return ModuleBlocks(module, path, token_ids, module.whole, module.copied)
