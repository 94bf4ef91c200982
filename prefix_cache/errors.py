"""Errors of the prefix cache, as types.

PrefixCacheError
 |- InvariantBroken     the cache's own counts do not add up: a bug here; the engine must stop
 |   `- IllegalTransition   a block's residency was to change in a way that is not allowed
 |- RestoreError        blocks were to be restored where there is no disk, or into a used cache
 |- LeaseError          a lease was used against its terms: a bug of the caller
 `- UnknownMove         a move was completed that is not under way: a bug of the caller

"Not now" is not an error: `acquire` then returns None and `extend` False.
"""

from __future__ import annotations


class PrefixCacheError(Exception):
    """Base of everything the prefix cache raises."""


class InvariantBroken(PrefixCacheError):
    """Contradiction in the cache's own state: a bug; the engine must stop."""


class IllegalTransition(InvariantBroken):
    """A block's residency was to change in a way that `residency` does not know."""


class LeaseError(PrefixCacheError):
    """A lease was used after its release, or beyond its blocks: a bug of the caller."""


class RestoreError(PrefixCacheError):
    """A tree can be restored once, before anything else, into a cache that has a disk tier."""


class UnknownMove(PrefixCacheError):
    """A move was reported that the cache has not asked for, or that was reported before."""
