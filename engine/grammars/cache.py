"""Compiled grammars, each flow's apart: none is found for another flow, at any speed.

Knows: how many are kept. Does not know: what a grammar is.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.grammars.compilation import Compilation
from engine.link.messages import Grammar

PER_FLOW = 16
MAX_FLOWS = 64


class GrammarCache:
    """The grammars that each flow used last. One owner thread."""

    def __init__(self, per_flow: int = PER_FLOW, max_flows: int = MAX_FLOWS) -> None:
        self._flows: OrderedDict[str, OrderedDict[Grammar, Compilation]] = OrderedDict()
        self._per_flow = per_flow
        self._max_flows = max_flows

    def find(self, flow: str, grammar: Grammar) -> Compilation | None:
        """What has come, or will come, of the flow's own grammar."""
        grammars = self._flows.get(flow)
        found = None if grammars is None else grammars.get(grammar)
        if grammars is not None and found is not None:
            self._flows.move_to_end(flow)
            grammars.move_to_end(grammar)
        return found

    def forget(self, flow: str | None) -> None:
        """Drop the grammars of a flow; of all flows when it is None."""
        if flow is None:
            self._flows.clear()
        else:
            self._flows.pop(flow, None)

    def keep(self, flow: str, grammar: Grammar, compilation: Compilation) -> None:
        """Keep it for the flow, in place of what it has not used for longest."""
        grammars = self._flows.setdefault(flow, OrderedDict())
        grammars[grammar] = compilation
        self._flows.move_to_end(flow)
        if len(grammars) > self._per_flow:
            grammars.popitem(last=False)
        if len(self._flows) > self._max_flows:
            self._flows.popitem(last=False)
