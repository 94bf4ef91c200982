"""The choice between fetching and computing KV blocks, by measured times.

    fetch    time to the first answer + (blocks of other fetches + these blocks) x time of a block
    compute  seconds for the tokens to be computed before + seconds for these blocks (`StepTimes`)

The rate of a transport is learned only by using it. A transport without measurements is therefore
assumed to be faster than computing. An engine that seems too slow is still asked from time to time.
The fetch's deadline bounds the cost of such a trial.
"""

from __future__ import annotations

from engine.exchange.fetching.fetch import LATE, Fetch
from prefix_cache.leases.load_or_recompute import WEIGHT, CopyRate, PrefillTimes
from prefix_cache.leases.refusals import Refusals

# The assumed bytes per second of each transport until its rate is measured. Until then, fetching a
# block is assumed to take at most `UNTRIED` times as long as computing it.
FIRST_GUESS = {"socket": 2e9, "tcp": 1e9, "device": 5e10}
UNTRIED = 0.5
FIRST_WORD_S = 0.002  # assumed seconds from the request to the first answer
LEAST_BLOCKS = 4  # minimum number of blocks of a fetch from which a rate is learned


class FetchRates:
    """The measured rates, and the decision to fetch. Used by one thread only."""

    def __init__(self, times: PrefillTimes, *, block_size: int, block_bytes: int) -> None:
        self._times = times
        self._block_size = block_size
        self._blocks = {way: CopyRate(block_bytes / rate) for way, rate in FIRST_GUESS.items()}
        self._first_word = FIRST_WORD_S
        self._refusals = Refusals[tuple[str, str]]()

    def learn(self, fetch: Fetch) -> None:
        """Learn from an ended fetch.

        A fetch that reached its deadline counts as slow. Nothing is learned from a fetch that
        waited for the other engine to compute blocks, or that failed.
        """
        is_timed = fetch.why in ("", LATE) and fetch.wanted.request_id is None
        if is_timed and fetch.answered is not None and fetch.ended is not None:
            blocks, took = fetch.units, fetch.ended - fetch.answered
            if fetch.why == LATE:
                blocks = max(blocks, LEAST_BLOCKS)
            self.measured(fetch.way, blocks, fetch.answered - fetch.began, took)

    def measured(self, way: str, blocks: int, first_word_s: float, seconds: float) -> None:
        """Learn that an answer took `first_word_s` seconds, and its blocks `seconds` more."""
        self._first_word += WEIGHT * (first_word_s - self._first_word)
        if blocks >= LEAST_BLOCKS:
            self._blocks[way].add(blocks, seconds)

    def computing(self, first: int, end: int, before: int = 0) -> float | None:
        """Predict the seconds to compute `before` tokens and then these blocks, or return None."""
        if not self._times.is_measured:
            return None
        size = self._block_size
        return self._times.prefill(0, before) + self._times.prefill(first * size, end * size)

    def is_worth_it(
        self, where: str, way: str, flow: str, first: int, end: int, *, before: int, waiting: int
    ) -> bool:
        """Return whether `flow` should fetch the blocks.

        `waiting` is the number of blocks that other fetches are still waiting for.
        """
        computing = self.computing(first, end, before)
        if computing is None:
            return True
        per_block = self._per_block(way, first, end)
        fetching = self._first_word + (waiting + end - first) * per_block
        if fetching < computing:
            return True
        is_due = self._refusals.is_due((where, flow))
        self._refusals.add((where, flow))
        return is_due

    def _per_block(self, way: str, first: int, end: int) -> float:
        rate = self._blocks[way]
        if rate.is_measured:
            return rate.per_block
        computing = self._times.prefill(first * self._block_size, end * self._block_size)
        return min(rate.per_block, UNTRIED * computing / (end - first))
