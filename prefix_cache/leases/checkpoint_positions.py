"""The positions of a prompt whose states the tree is to keep.

    0 .. parts from what is cached .. published ends, marks .. question .. tail .. the last block

A row ends at each of them, so each may cost a step. A step of so few tokens as LEAST_SAVED takes
about as long as one of a single token: both read the weights, and little else. So the state at the
question or before the last token is kept only where it saves later prompts that many.

Nobody marks where a question begins that stands behind its documents in one text. Most are shorter
than TAIL, so a long text has a state that far before its end, too.

Knows: positions in tokens. Does not know: slots, or whose a position is (`state_leasing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefix_cache.leases.lease import Lease

LEAST_SAVED = 128  # tokens; on an H200 products of some 160 take as long as reading the weights
TAIL = 256  # tokens at the end of a long text, in which its question begins
LEAST_BEFORE_TAIL = 1024  # tokens of a text before its tail that are worth a step


def prompt_positions(
    lease: Lease, prompt_len: int, *, marks: Iterable[int] = (), question: int = 0, unit: int = 1
) -> Iterator[int]:
    """Yield positions of whole blocks before a prompt's last token; none without states.

    `marks`: tokens before each cache breakpoint. `question`: tokens before the last message of the
    user; 0: unknown. `unit`: tokens that a position of all these stands for.
    """
    states = lease.states
    if states is None:
        return
    size, start, last = states.block_size, states.at.position, prompt_len - 1
    spans = (begin * size for begin, _ in lease.path.spans)
    kept = {min(one, last) // size * size for one in (states.matched, *spans, *marks)}
    yield from kept
    tail = last - TAIL // unit
    if tail < max(question, *kept):
        tail = 0
    for one, least in (question, LEAST_SAVED), (tail, LEAST_BEFORE_TAIL), (last, LEAST_SAVED):
        end = min(one, last) // size * size
        before = max((other for other in kept if other <= end), default=0)
        if end - max(before, start) >= least // unit:
            kept.add(end)
            yield end
