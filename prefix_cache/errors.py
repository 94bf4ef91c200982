"""The errors of the prefix cache.

PrefixCacheError
 |- InvariantBroken     the cache's own counts do not add up: a bug here; the engine must stop
 |   `- IllegalTransition   a change of a block's residency that is not allowed
 |- RestoreError        a restore without a disk tier, or into a used cache
 |- LeaseError          a use of a released lease, or beyond its blocks: a bug of the caller
 `- UnknownMove         the end of a move that is not under way: a bug of the caller

"Not now" is not an error: `acquire` then returns None, and `extend` returns False.
"""

from __future__ import annotations


class PrefixCacheError(Exception):
    """The base of all errors that the prefix cache raises."""


class InvariantBroken(PrefixCacheError):
    """A contradiction in the cache's own state, a bug that must stop the engine."""


class IllegalTransition(InvariantBroken):
    """A change of a block's residency that `residency` does not allow."""


class LeaseError(PrefixCacheError):
    """A use of a lease after its release or beyond its blocks, by a bug of the caller."""


class RestoreError(PrefixCacheError):
    """A restore of the tree without a disk tier, or into a used cache."""


class UnknownMove(PrefixCacheError):
    """A report of a move that is not under way."""
