"""The compiled grammars, cached for each flow separately.

Separate caches hide from a flow which grammars other flows use. The memory of the cached grammars
is bounded for each flow and for all flows together. A grammar in use cannot be dropped, so new
requests of a flow with too many bytes in use are refused for now. Only grammars in use or being
compiled are measured again, so the cost of a request does not grow with the cache.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from engine.errors import QueueFull
from engine.grammars.compilation import Compilation
from engine.grammars.limits import ALL_BYTES, FLOW_BYTES
from engine.link.messages import Grammar


class _Kept:
    """The compiled grammars of one flow, in order of their last use."""

    def __init__(self) -> None:
        self.grammars: OrderedDict[bytes, Compilation] = OrderedDict()
        self.num_bytes = 0
        self._weights: dict[Compilation, int] = {}
        self._moving: set[Compilation] = set()  # compilations whose memory may have grown
        # Compilations still in use that lookups must not return.
        self._worn: set[Compilation] = set()

    def keep(self, key: bytes, compilation: Compilation) -> None:
        self.wear(key)
        self.grammars[key] = compilation
        self._moving.add(compilation)

    def use(self, key: bytes) -> None:
        self.grammars.move_to_end(key)
        self._moving.add(self.grammars[key])

    def wear(self, key: bytes) -> None:
        compilation = self.grammars.pop(key, None)
        if compilation is not None:
            self._worn.add(compilation)
            self._moving.add(compilation)

    def weigh(self) -> None:
        for one in list(self._moving):
            is_worn = one in self._worn
            if not one.users and (is_worn or one.is_done):
                self._moving.remove(one)
            if is_worn and not one.users:
                self._drop(one)
            else:
                weight = one.num_bytes
                self.num_bytes += weight - self._weights.get(one, 0)
                self._weights[one] = weight

    def drop(self, num_bytes: int) -> None:
        """Drop the least recently used compilations, to free `num_bytes`. Skip those in use."""
        keys = []
        for key, compilation in self.grammars.items():
            if num_bytes <= 0:
                break
            if not compilation.users:
                num_bytes -= self._weights[compilation]
                keys.append(key)
        for key in keys:
            self._drop(self.grammars.pop(key))

    def _drop(self, compilation: Compilation) -> None:
        self.num_bytes -= self._weights.pop(compilation, 0)
        self._moving.discard(compilation)
        self._worn.discard(compilation)


class GrammarCache:
    """The most recently used grammars of each flow. Used by one thread only."""

    def __init__(self, flow_bytes: int = FLOW_BYTES, all_bytes: int = ALL_BYTES) -> None:
        # The flow that asked last is at the end.
        self._flows: OrderedDict[str, _Kept] = OrderedDict()
        self._unweighed: set[str] = set()
        self._num_bytes = 0
        self._flow_bytes = flow_bytes
        self._all_bytes = all_bytes

    def find(self, flow: str, grammar: Grammar) -> Compilation | None:
        """Return the flow's cached compilation of a grammar, or None if it must be compiled."""
        kept, key = self._flows.get(flow), _digest(grammar)
        found = None if kept is None else kept.grammars.get(key)
        if kept is None or found is None:
            return None
        if found.is_worn:
            kept.wear(key)
            return None
        self._flows.move_to_end(flow)
        kept.use(key)
        return found

    def forget(self, flow: str | None) -> None:
        """Drop the grammars of a flow, or of all flows."""
        for one in list(self._flows) if flow is None else [flow]:
            kept = self._flows.get(one, _Kept())
            for key in list(kept.grammars):
                kept.wear(key)
            self._weigh(kept)

    def make_room(self, flow: str) -> None:
        """Drop grammars until the memory is within the bounds.

        Raises QueueFull if the flow has too many bytes in use. Also raises QueueFull if all flows
        together have too many bytes in use and this flow has more than an equal share.
        """
        kept = self._flows.get(flow)
        if kept is None:
            return
        for one in {flow, *self._unweighed}:
            self._weigh(self._flows[one])
        self._unweighed.clear()
        self._drop(kept, kept.num_bytes - self._flow_bytes)
        over = self._drop_of_all()
        share = self._all_bytes // len(self._flows) if over > 0 else self._flow_bytes
        if kept.num_bytes > share:
            raise QueueFull("the grammars in use take too much memory", retry_after_s=1.0)

    def keep(self, flow: str, grammar: Grammar, compilation: Compilation) -> None:
        """Cache a compilation for the flow, as the most recently used."""
        self._flows.setdefault(flow, _Kept()).keep(_digest(grammar), compilation)
        self._unweighed.add(flow)
        self._flows.move_to_end(flow)

    def _drop_of_all(self) -> int:
        empty = []
        for flow, kept in self._flows.items():
            if self._num_bytes <= self._all_bytes:
                break
            self._drop(kept, self._num_bytes - self._all_bytes)
            if not kept.num_bytes:
                empty.append(flow)
        for flow in empty:
            del self._flows[flow]
        return self._num_bytes - self._all_bytes

    def _weigh(self, kept: _Kept) -> None:
        self._num_bytes -= kept.num_bytes
        kept.weigh()
        self._num_bytes += kept.num_bytes

    def _drop(self, kept: _Kept, num_bytes: int) -> None:
        self._num_bytes -= kept.num_bytes
        kept.drop(num_bytes)
        self._num_bytes += kept.num_bytes


def _digest(grammar: Grammar) -> bytes:
    text = f"{grammar.kind} {grammar.text}"
    return hashlib.blake2b(text.encode(), digest_size=32).digest()
