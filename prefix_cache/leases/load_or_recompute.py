"""The decision how many blocks of a prefix to load from lower tiers.

    time to the first token, if `n` blocks are loaded:

        max(copies before these + copy of n blocks, tokens to be computed before this prompt)
            + computing the other tokens of the prompt

The `n` with the least time is chosen. Among equal times, the largest `n` is chosen. The caller
predicts the time of computing (`PrefillTimes`). The time of copies is measured for each source
tier. Until a rate is measured, loading is assumed to be quicker. Otherwise nothing would be loaded,
and no rate measured. For the same reason, refused loads are tried again now and then
(`refusals.py`).

If a recurrent state is needed at the end, all blocks up to the state are loaded with it, or no
block. A state takes as long to load as blocks of the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prefix_cache.leases.refusals import Refusals
from prefix_cache.names import Loads
from prefix_cache.tree.match import Whereabouts
from storage.move import Tier

LOWER = (Tier.HOST, Tier.DISK)
# Initial bytes a second of a copy to the device. The host's rate is high, so that loads from the
# host are tried and measured.
FIRST_GUESS = {Tier.HOST: 2e10, Tier.DISK: 2e8}
WEIGHT = 0.2  # share of a new measurement in the running mean


class PrefillTimes(Protocol):
    """Predictions of prefill times, in seconds, from measured prefill times."""

    @property
    def is_measured(self) -> bool:
        """True if any prefill time was measured."""
        ...

    def prefill(self, start: int, end: int) -> float:
        """Predict the seconds to prefill the tokens [start, end) of one prompt."""
        ...


class CopyRate:
    """The running mean of the seconds to copy a block from a tier, which starts as a guess."""

    def __init__(self, first_guess: float) -> None:
        self.per_block = first_guess
        self.is_measured = False

    def add(self, blocks: int, seconds: float) -> None:
        """Add a measured copy of `blocks` blocks in `seconds`."""
        weight = WEIGHT if self.is_measured else 1.0
        self.per_block += weight * (seconds / blocks - self.per_block)
        self.is_measured = True


@dataclass(frozen=True, slots=True)
class Queue:
    """The work queued before a request: tokens to compute, and blocks being loaded by tier."""

    tokens: int = 0
    copies: Mapping[Tier, int] = field(default_factory=dict)


NO_QUEUE = Queue()


class LoadOrRecompute:
    """The decision between loading and recomputing. Used by one thread only.

    The object also keeps the rates of copies and the counts of decisions.
    """

    def __init__(
        self, times: PrefillTimes, *, block_size: int, block_bytes: int, state_blocks: int = 0
    ) -> None:
        """Start with guessed rates. A recurrent state is as large as `state_blocks` blocks."""
        self._times = times
        self.state_blocks = state_blocks
        self.copies = {tier: CopyRate(block_bytes / rate) for tier, rate in FIRST_GUESS.items()}
        # Counts, by tier, of blocks found in lower tiers that were loaded, and that were
        # recomputed.
        self.chosen = dict.fromkeys(LOWER, 0)
        self.refused = dict.fromkeys(LOWER, 0)
        self.block_bytes = block_bytes
        self._block_size = block_size
        self._refusals = Refusals[tuple[Tier, str]]()  # keys are a tier and a flow

    def load_blocks(
        self,
        found: Whereabouts,
        num_tokens: int,
        queue: Queue = NO_QUEUE,
        asked: Loads = "auto",
        flow: str = "",
    ) -> int:
        """Decide how many of `found`'s lower-tier blocks to load for a prompt of `flow`."""
        lower = found.host + found.disk
        if asked == "always":
            return lower
        if asked == "never" or not lower:
            return 0
        if not self._times.is_measured:
            return lower
        host, disk = found.host, found.disk
        # Try none, half or all of a tier's blocks. In between, the time is nearly linear.
        loads = {0, host // 2, host, host + disk // 2, host + disk}
        quickest = min(loads, key=lambda n: (self.seconds(n, found, num_tokens, queue), -n))
        return max(quickest, self._on_trial(found, quickest, flow))

    def loads_state(
        self,
        found: Whereabouts,
        without: int,
        num_tokens: int,
        queue: Queue = NO_QUEUE,
        asked: Loads = "auto",
        flow: str = "",
    ) -> bool:
        """Decide whether to load all of `found`, with its recurrent state.

        Otherwise, the tokens after block `without` are computed.
        """
        if asked != "auto" or not self._times.is_measured:
            return asked != "never"
        loaded = self.seconds(found.host + found.disk, found, num_tokens, queue)
        first = min(without * self._block_size, num_tokens)
        waited = self._times.prefill(0, queue.tokens)
        if loaded <= waited + self._times.prefill(first, num_tokens):
            return True
        there = self._there(found)
        return any(there[tier] and self._refusals.is_due((tier, flow)) for tier in LOWER)

    def seconds(self, loads: int, found: Whereabouts, num_tokens: int, queue: Queue) -> float:
        """Predict the seconds to the first token if `loads` of the lower-tier blocks are loaded."""
        host = min(loads, found.host)
        parts = {Tier.HOST: host, Tier.DISK: loads - host}
        if found.state is not None:
            parts[found.state] += self.state_blocks
        copied = max(
            (
                (queue.copies.get(tier, 0) + blocks) * self.copies[tier].per_block
                for tier, blocks in parts.items()
                if blocks
            ),
            default=0.0,
        )
        waited = self._times.prefill(0, queue.tokens)
        first = (found.device + found.coming + loads) * self._block_size
        return max(copied, waited) + self._times.prefill(min(first, num_tokens), num_tokens)

    def count(
        self, found: Whereabouts, loads: int, flow: str = "", *, has_state: bool = True
    ) -> None:
        """Count the decision for a lease that loads `loads` of `found`'s lower-tier blocks.

        With `has_state`, the lease also loads the recurrent state at their end.
        """
        host = min(loads, found.host)
        loaded = {Tier.HOST: host, Tier.DISK: loads - host}
        if found.state is not None and has_state:
            loaded[found.state] += self.state_blocks
        for tier, there in self._there(found).items():
            chosen = loaded[tier]
            self.chosen[tier] += chosen
            self.refused[tier] += there - chosen
            # A due trial counts like a refusal, so the next trial comes only after RETRY more
            # refusals.
            if there > chosen or (chosen > 0 and self._refusals.is_due((tier, flow))):
                self._refusals.add((tier, flow))

    def _there(self, found: Whereabouts) -> dict[Tier, int]:
        there = {Tier.HOST: found.host, Tier.DISK: found.disk}
        if found.state is not None:
            there[found.state] += self.state_blocks
        return there

    def _on_trial(self, found: Whereabouts, loads: int, flow: str) -> int:
        """Return how many blocks to load on trial, since loads from a tier were often refused."""
        lower = found.host + found.disk
        if loads < lower and found.disk and self._refusals.is_due((Tier.DISK, flow)):
            return lower
        is_host_due = loads < found.host and self._refusals.is_due((Tier.HOST, flow))
        return found.host if is_host_due else 0
