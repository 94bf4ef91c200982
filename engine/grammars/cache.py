"""Compiled grammars, each flow's apart: none is found for another flow, at any speed.

What is kept is bounded by the memory that it takes, of each flow and of all. What is in use cannot
be dropped: a flow that has too much of it in use waits.

Knows: what is kept, and what it takes. Does not know: what a grammar is.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.errors import QueueFull
from engine.grammars.compilation import Compilation
from engine.grammars.limits import ALL_BYTES, FLOW_BYTES
from engine.link.messages import Grammar


class _Kept:
    """One flow's, the one that was used last at the end."""

    def __init__(self) -> None:
        self.grammars: OrderedDict[Grammar, Compilation] = OrderedDict()
        self.worn: list[Compilation] = []  # in use, and no more found
        self.num_bytes = 0  # when they were weighed last

    def weigh(self) -> None:
        self.worn = [one for one in self.worn if one.users]
        all_of_it = (*self.grammars.values(), *self.worn)
        self.num_bytes = sum(one.num_bytes for one in all_of_it)

    def drop(self, num_bytes: int) -> None:
        """Drop what was not used for longest until so much is gone, but nothing in use."""
        for grammar, compilation in list(self.grammars.items()):
            if num_bytes <= 0:
                break
            if not compilation.users:
                num_bytes -= compilation.num_bytes
                del self.grammars[grammar]
        self.weigh()


class GrammarCache:
    """The grammars that each flow used last. One owner thread."""

    def __init__(self, flow_bytes: int = FLOW_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._flows: OrderedDict[str, _Kept] = OrderedDict()  # the one that asked last at the end
        self._unweighed: set[str] = set()  # flows with a grammar that was new
        self._flow_bytes = flow_bytes
        self._all_bytes = all_bytes

    def find(self, flow: str, grammar: Grammar) -> Compilation | None:
        """Return the flow's own compilation, under way or ended; never a worn one."""
        kept = self._flows.get(flow)
        found = None if kept is None else kept.grammars.get(grammar)
        if kept is None or found is None:
            return None
        if found.is_worn:
            kept.worn.append(kept.grammars.pop(grammar))
            return None
        self._flows.move_to_end(flow)
        kept.grammars.move_to_end(grammar)
        return found

    def forget(self, flow: str | None) -> None:
        """Drop the grammars of a flow; of all flows when it is None."""
        for kept in self._flows.values() if flow is None else [self._flows.get(flow, _Kept())]:
            kept.worn += kept.grammars.values()
            kept.grammars.clear()
            kept.weigh()

    def make_room(self, flow: str) -> None:
        """Drop what is over the bounds; raises QueueFull where the flow has too much in use.

        Where all flows together have too much in use, those with less than their share go on.
        """
        kept = self._flows.get(flow)
        if kept is None:
            return
        for one in (flow, *self._unweighed):
            self._flows[one].weigh()
        self._unweighed.clear()
        kept.drop(kept.num_bytes - self._flow_bytes)
        over = self._drop_of_all()
        share = self._all_bytes // len(self._flows) if over > 0 else self._flow_bytes
        if kept.num_bytes > share:
            raise QueueFull("the grammars in use take too much memory", retry_after_s=1.0)

    def keep(self, flow: str, grammar: Grammar, compilation: Compilation) -> None:
        """Keep it for the flow, as what it used last."""
        kept = self._flows.setdefault(flow, _Kept())
        kept.grammars[grammar] = compilation
        self._unweighed.add(flow)
        self._flows.move_to_end(flow)

    def _drop_of_all(self) -> int:
        """Drop of the flows that have not asked for longest; the bytes over the bound that stay."""
        over = sum(kept.num_bytes for kept in self._flows.values()) - self._all_bytes
        for flow, kept in list(self._flows.items()):
            if over <= 0:
                break
            before = kept.num_bytes
            kept.drop(over)
            over -= before - kept.num_bytes
            if not kept.num_bytes:
                del self._flows[flow]
        return over
