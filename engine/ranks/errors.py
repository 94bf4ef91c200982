"""What ends an engine of several ranks although nothing is wrong with it: another rank is gone.

Knows: nothing else, so that who only has to tell this end from a broken invariant needs no torch.
"""

from __future__ import annotations


class AnotherRankIsGone(Exception):
    """Another rank has died, or does not answer, and its part of the model with it."""
