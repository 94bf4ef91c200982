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
    """Base of all errors that the prefix cache raises."""


class InvariantBroken(PrefixCacheError):
    """A contradiction in the cache's own state: a bug; the engine must stop."""


class IllegalTransition(InvariantBroken):
    """A change of a block's residency that `residency` does not allow."""


class LeaseError(PrefixCacheError):
    """A use of a lease after its release or beyond its blocks: a bug of the caller."""


class RestoreError(PrefixCacheError):
    """A restore of the tree into a cache that was used already or has no disk tier."""


class UnknownMove(PrefixCacheError):
    """A report of a move that the cache has not asked for, or that was reported before."""
