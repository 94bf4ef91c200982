"""A prompt module of a request, on the link between gateway and engine."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


ID_BYTES, _KEY_BYTES = 4, 16  # bytes of a token id, and of a block key


class PromptModule(msgspec.Struct, frozen=True, array_like=True):
    """A prompt module: a piece of prompt whose KV is computed once for all prompts that name it.

    The tokens of a module attend to the module itself, and in some modules also to the head, which
    is the first module of the request. Such a module begins with copies of the head's last tokens,
    those that do not fill a block. A prompt's other tokens attend to the tokens of all its modules,
    except scaffolds. Blocks that have neither scaffolds nor copies nor padding are read in place.
    Of other blocks, the tokens to which prompts attend are copied to the prompt's beginning.
    """

    token_ids: bytes  # int32, little endian, padded to whole blocks; no token attends to padding
    num_tokens: int  # number of tokens without the padding
    positions: bytes  # int32, little endian, one for each token
    namespace: bytes  # 16 bytes; only this module at these positions uses this namespace
    block_keys: bytes  # the blocks' keys, 16 bytes each
    # Number of leading tokens that are copies of the head's; None: no head.
    head_tokens: int | None = None
    # Parameters' scaffolds, in order, each as (first, end). Only the module itself attends to them.
    scaffolds: tuple[tuple[int, int], ...] = ()

    @property
    def own_tokens(self) -> int:
        """The number of the module's tokens to which prompts attend, without the head module's."""
        return self.own_between(0, self.num_tokens)

    def own_between(self, first: int, end: int) -> int:
        """Count those of `own_tokens` whose index is at least `first` and less than `end`."""
        texts = self._texts()
        return sum(max(min(end, stop) - max(first, start), 0) for start, stop in texts)

    @property
    def unread_tokens(self) -> int:
        """The number of tokens to which no prompt attends: scaffolds and padding."""
        return self.padded_tokens - self.own_tokens - (self.head_tokens or 0)

    @property
    def padded_tokens(self) -> int:
        """The number of the module's tokens with the padding."""
        return len(self.token_ids) // ID_BYTES

    @property
    def whole(self) -> tuple[range, ...]:
        """The indices of the module's tokens that fill whole blocks, which are read in place."""
        size = len(self.token_ids) // ID_BYTES // (len(self.block_keys) // _KEY_BYTES)
        starts = ((min(-(-start // size) * size, end), end) for start, end in self._texts())
        return tuple(range(start, max(end // size * size, start)) for start, end in starts)

    @property
    def copied(self) -> tuple[int, ...]:
        """The indices of the module's tokens that are copied, without those of the head module."""
        texts = zip(self._texts(), self.whole, strict=True)
        parts = ((*range(a, part.start), *range(part.stop, end)) for (a, end), part in texts)
        return tuple(chain.from_iterable(parts))

    def _texts(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the module's own tokens before, between and after its scaffolds."""
        edges = [(0, self.head_tokens or 0), *self.scaffolds, (self.num_tokens, 0)]
        return ((start, end) for (_, start), (end, _) in pairwise(edges))
