"""All that an object leads to, for tests of what is kept in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType

SHARED = (type, ModuleType, FunctionType)  # these lead to everything


def reachable(root: object) -> Iterator[object]:
    """`root` and what it holds, directly or not, but for what all of the program shares."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, SHARED):
            seen[id(one)] = one
            waiting += gc.get_referents(one)
            yield one
