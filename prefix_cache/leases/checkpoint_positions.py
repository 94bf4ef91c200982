"""The positions of a prompt whose states the tree is to keep.

    0 .. parts from what is cached .. published ends, marks .. the question .. the last block's end

A row ends at each of them, so each may cost a step. A step of so few tokens as LEAST_SAVED takes
about as long as one of a single token: both read the weights, and little else. So the state at the
question or before the last token is kept only where it saves later prompts that many.

Knows: positions in tokens. Does not know: slots, or whose a position is (`state_leasing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefix_cache.leases.lease import Lease

LEAST_SAVED = 128  # tokens; on an H200 products of some 160 take as long as reading the weights


def prompt_positions(
    lease: Lease,
    prompt_len: int,
    *,
    marks: Iterable[int] = (),
    question: int = 0,
    least_saved: int = LEAST_SAVED,
) -> Iterator[int]:
    """Yield positions of whole blocks before a prompt's last token; none without states.

    `marks`: tokens before each cache breakpoint. `question`: tokens before the last message of the
    user; 0: unknown. `least_saved`: tokens.
    """
    states = lease.states
    if states is None:
        return
    size, start, last = states.block_size, states.at.position, prompt_len - 1
    spans = (begin * size for begin, _ in lease.path.spans)
    sure = {min(one, last) // size * size for one in (states.matched, *spans, *marks)}
    yield from sure
    for one in (question, last):
        end = min(one, last) // size * size
        before = max((other for other in sure if other <= end), default=0)
        if end - max(before, start) >= least_saved:
            sure.add(end)
            yield end
