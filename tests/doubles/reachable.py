"""All objects that an object refers to, for tests that objects are freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType

SHARED = (type, ModuleType, FunctionType)  # objects of these types refer to everything


def reachable(root: object) -> Iterator[object]:
    """Return `root` and the objects it refers to, directly or not, except those of SHARED types."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, SHARED):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
            yield one
