"""How many sequences each flow has: which gives up a seat for a newcomer, whose prompts go first.

Seats and the tokens of a step are given out in order of arrival. That alone would let a flow that
came with many requests hold all of them while another comes with one.

In the long run the queue's credit decides how much a flow gets; this decides who goes first until
then.

Knows: flows of sequences. Does not know: credit, or what seats are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter

from engine.draft import tokens_to_go
from engine.sequence import Sequence

# Work that waits is a flood if it comes from at most this many flows ...
FEW_FLOWS = 4
MANY_REQUESTS = 4  # ... or if there are more requests than this for each flow


def is_flood(flows: int, requests: int) -> bool:
    """Whether the work that waits comes from few flows, or from flows with many requests each.

    Any other work is a normal load, of which a newcomer is a part like all: large steps then
    serve everybody best.
    """
    return flows <= FEW_FLOWS or requests > MANY_REQUESTS * flows


def begun_by_flow(present: Iterable[Sequence]) -> Counter[str]:
    """Tokens that the sequences of each flow have still to compute."""
    begun = Counter[str]()
    for one in present:
        begun[one.flow] += tokens_to_go(one)
    return begun


def who_gives(
    running: Iterable[Sequence], flow: str, spared: Iterable[Sequence]
) -> Sequence | None:
    """The sequence to preempt for `flow`: the latest arrival of the flow with the most seats.

    None where `flow` has a seat already, or where no flow has two. `spared` ones are not chosen.
    """
    seated = list(running)
    if any(one.flow == flow for one in seated):
        return None
    kept = {id(one) for one in spared}
    seated = [one for one in seated if id(one) not in kept]
    seats = Counter(one.flow for one in seated)
    largest, count = seats.most_common(1)[0] if seats else ("", 0)
    if count < 2:
        return None
    return max((one for one in seated if one.flow == largest), key=attrgetter("arrived"))


def fewest_first(
    chunks: list[Sequence], running: Iterable[Sequence], num_waiting: Callable[[str], int]
) -> list[Sequence]:
    """The sequences of flows with few requests, running and waiting, before those of the others."""
    flows = {one.flow for one in chunks}
    if len(flows) < 2:
        return chunks
    seats = Counter(one.flow for one in running)
    alive = {flow: seats[flow] + num_waiting(flow) for flow in flows}
    return sorted(chunks, key=lambda one: alive[one.flow])
