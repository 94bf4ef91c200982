"""How many tokens of waiting prompts a step has beside decodes, where they may take several steps.

A step reads all weights for its decodes, however few they are. Tokens that come along cost little
more until the products are bound by arithmetic, from some hundred rows on; and all decodes wait for
the whole step. So what waits is spread over some steps:

    tokens of a step = what waits / steps, and at least `LEAST`, filled up to a recorded step

A large backlog, as when many begin, is computed in large steps all the same: a sequence that waits
for its first token is missing among the decodes. Of a crowd some always wait, and its decodes alone
are rows enough for the products: what waits is not spread then.

Knows: counts of tokens. Does not know: whose they are, or who goes first (`scheduler.py`).
"""

from __future__ import annotations

from engine.step_sizes import filled

LEAST = 256  # tokens: beside decodes of all kinds there is a room for just so many
CROWD = 72  # sequences: so many and more gain nothing (`benchmarks.workloads_modelled`)
DECODES_A_STEP = 2  # fewer decodes than this for each step have prompts wait for less
ADAPTS = 0.2  # weight of the prompt that was admitted last among those before


class Backlog:
    """Prompts that wait, as a number of tokens. One owner thread."""

    def __init__(self, steps: int) -> None:
        """`steps`: over how many they are spread; 0: over as few as the budget allows."""
        self._steps = steps
        self._usual: float | None = None  # tokens that a prompt has to compute

    def admitted(self, tokens: int) -> None:
        """A prompt that has so many tokens to compute has left the queue."""
        usual = tokens if self._usual is None else self._usual
        self._usual = usual + ADAPTS * (tokens - usual)

    def is_spread(self, decodes: int, present: int) -> bool:
        """Whether so many decodes have a part of what waits beside them, and no more.

        `present`: sequences, those that wait too.
        """
        return self._steps > 0 and decodes > 0 and present < CROWD

    def part(self, decodes: int, begun: int, waiting: int) -> int | None:
        """Tokens of prompts beside decodes, where what waits is spread; None: nobody can say yet.

        `begun`: tokens that admitted prompts have left; `waiting`: prompts in the queue, of which
        nobody knows yet how much is cached: they are taken to be like those before.
        """
        if waiting and self._usual is None:
            return None
        tokens = begun + waiting * (self._usual or 0.0)
        steps = min(self._steps, decodes / DECODES_A_STEP)
        return filled(decodes, max(int(tokens / steps), LEAST))
