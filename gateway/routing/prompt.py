"""A request as routers see it: the length of its prompt, and its blocks' keys.

Routers do not know the engines' block size. They estimate the size as a prompt's number of tokens,
divided by its number of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from engine.link.messages import FetchSource, Generate
from prefix_cache.hashing import KEY_BYTES

TOKEN_BYTES = 4
SHORT = (1 << 60) - 1  # mask of a key's used bits: a Python integer of 60 bits takes 32 bytes
STRIDE = 32

Keys = Sequence[int]  # keys of blocks, cut to `SHORT`


def keys_of(block_keys: bytes) -> Keys:
    """Read block keys in their short form. Drop an incomplete last key.

    The keys are stored as machine integers, and become Python integers only when they are read.
    """
    halves = len(block_keys) // KEY_BYTES * 2
    firsts = np.frombuffer(block_keys, np.uint64, halves)[::2]
    return (firsts & np.uint64(SHORT)).data


class RoutingRequest(msgspec.Struct, frozen=True, array_like=True):
    """The part of a `Generate` that a router is given, with neither tokens nor a tenant's name."""

    request_id: str
    tokens: Annotated[int, Meta(ge=0)]
    block_keys: bytes = b""  # 16 bytes for every whole block of the prompt
    namespace: bytes = b""  # the request's own namespace, the last of its path
    use_cache: bool = True
    source: FetchSource | None = None


def routing_request(request: Generate) -> RoutingRequest:
    """Select the part of a `Generate` that routers see."""
    return RoutingRequest(
        request.request_id,
        request.prompt_tokens,
        _keys(request),
        request.namespaces[-1][1] if request.namespaces else b"",
        request.use_cache,
        request.source,
    )


def _keys(request: Generate) -> bytes:
    """Return the keys by which an engine is chosen; with modules, the longest module's keys."""
    return max((one.block_keys for one in request.modules), key=len, default=request.block_keys)


@dataclass(slots=True)
class Prompt:
    """The prompt of a request: the number of its tokens and the keys of its blocks."""

    tokens: int
    blocks: int
    keys: Keys
    namespace: bytes = b""  # the request's own namespace, the last of its path
    _marks: list[tuple[int, int]] | None = field(default=None, repr=False)

    def tokens_of(self, blocks: int) -> int:
        """Estimate the tokens of the prompt's first `blocks` blocks."""
        return self.tokens * blocks // self.blocks if blocks else 0

    def uncached(self, cached: int) -> int:
        """Count the prompt tokens to compute (at least one) if `cached` blocks are cached."""
        left = self.tokens - self.tokens * cached // self.blocks if cached else self.tokens
        # `max` is not called, since it would take longer, and this code runs for each replica
        return left if left > 1 else 1

    def marks(self) -> list[tuple[int, int]]:
        """Return some beginnings of the prompt: the number of blocks and the last block's key.

        The beginnings have 1, 2, 4, 8, 16, 32, 64, 96, 128, 160, ... blocks.
        """
        if self._marks is None:
            self._marks = self._made_marks()
        return self._marks

    def _made_marks(self) -> list[tuple[int, int]]:
        marks, at, blocks = [], 1, self.blocks
        while at <= blocks:
            marks.append((at, self.keys[at - 1]))
            at += at if at < STRIDE else STRIDE
        return marks


def prompt_of(request: RoutingRequest) -> Prompt:
    """Make the prompt of a request. A request that bypasses the cache has no keys."""
    keys = keys_of(request.block_keys if request.use_cache else b"")
    return Prompt(request.tokens, len(keys), keys, request.namespace)
