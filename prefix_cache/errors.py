"""What can go wrong in the prefix cache, as types.

PrefixCacheError
 |- InvariantBroken     the books do not add up: a bug of ours; stop the step loudly
 `- LeaseError          a lease was used against its terms: a bug of the caller

"Not now" is no error: `acquire` answers None and `extend` answers False.
"""

from __future__ import annotations


class PrefixCacheError(Exception):
    """Base of everything the prefix cache raises."""


class InvariantBroken(PrefixCacheError):
    """Two parts of the cache's own state contradict each other."""


class LeaseError(PrefixCacheError):
    """A lease was used after its release, or beyond its blocks."""
