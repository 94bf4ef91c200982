"""How many each flow has: who gives a seat to whom, and whose chunks come first.

Seats and a step's tokens are given in order of arrival as long as they last. That alone would
let a flow that came with many hold all of them while another comes with one.

In the long run the queue's credit decides what a flow gets; this is who goes first until then.

Knows: flows of sequences. Does not know: credit, or what seats are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from operator import attrgetter

from engine.plan import tokens_to_go
from engine.sequence import Sequence

# Work that waits is a flood if it comes from at most this many flows ...
FEW_FLOWS = 4
MANY_REQUESTS = 4  # ... or if there are more requests than this for each flow


def is_flood(flows: int, requests: int) -> bool:
    """Whether few flows have the work that waits, or have many requests each; else it is a load.

    Of a load everybody who comes is a part: large steps are good for all.
    """
    return flows <= FEW_FLOWS or requests > MANY_REQUESTS * flows


def begun_by_flow(present: Many[Sequence]) -> Counter[str]:
    """Tokens that each flow's sequences have still to compute."""
    begun = Counter[str]()
    for one in present:
        begun[one.flow] += tokens_to_go(one)
    return begun


def who_gives(running: Many[Sequence], flow: str, spared: Many[Sequence]) -> Sequence | None:
    """Whose seat goes to `flow`, which has none: the last to come of who has the most.

    None where `flow` has one, or where nobody has two. Those spared give none.
    """
    if any(one.flow == flow for one in running):
        return None
    spares = {id(one) for one in spared}
    seated = [one for one in running if id(one) not in spares]
    seats = Counter(one.flow for one in seated)
    largest, count = seats.most_common(1)[0] if seats else ("", 0)
    if count < 2:
        return None
    return max((one for one in seated if one.flow == largest), key=attrgetter("arrived"))


def fewest_first(
    chunks: list[Sequence], running: Many[Sequence], num_waiting: Callable[[str], int]
) -> list[Sequence]:
    """The sequences of flows with few requests, running and waiting, before those of the others."""
    flows = {one.flow for one in chunks}
    if len(flows) < 2:
        return chunks
    seats = Counter(one.flow for one in running)
    alive = {flow: seats[flow] + num_waiting(flow) for flow in flows}
    return sorted(chunks, key=lambda one: alive[one.flow])
