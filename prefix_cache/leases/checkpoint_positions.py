"""The choice of positions in a prompt at which the tree keeps the model's recurrent state.

    0 .. end of the cached blocks .. published ends, marks .. question .. tail .. the last block

A row ends at each position, so each position may cost a step. A step of LEAST_SAVED tokens takes
about as long as a step of one token, since both steps spend most of their time on reading the
weights. So the state at the question or before the last token is kept only if it saves later
prompts LEAST_SAVED tokens.

If a question follows its documents in one text, no mark shows where the question begins. Most
questions are shorter than TAIL. So a long text also has a state TAIL tokens before its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefix_cache.leases.lease import Lease

# minimum saved tokens; on an H200, computing 160 tokens takes as long as reading the weights
LEAST_SAVED = 128
TAIL = 256  # tokens at the end of a long text, in which its question begins
LEAST_BEFORE_TAIL = 1024  # minimum tokens of a text before its tail for which a step pays


def prompt_positions(
    lease: Lease, prompt_len: int, *, marks: Iterable[int] = (), question: int = 0, unit: int = 1
) -> Iterator[int]:
    """Yield the positions at blocks' ends where a prompt's recurrent states should be kept.

    Yields no position for a lease without recurrent states. `marks` are the numbers of tokens
    before each cache breakpoint. `question` is the number of tokens before the user's last message,
    or 0 if unknown. `unit` is the number of tokens in each unit of these positions.
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
