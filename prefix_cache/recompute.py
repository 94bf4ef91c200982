"""Load or recompute: how many lower blocks of a prefix are worth bringing back.

    time to the first token, had `n` blocks been loaded:

        max(copies before mine + copy of n blocks, tokens to be computed before mine)
            + computing what is left of the prompt

The `n` with the least time is chosen; of equal ones the largest, since what is not computed leaves
time for other requests. Rates are measured: prefill by length of context, copies by the tier that
they come from. Before anything is measured, loading is assumed to be quicker, because a rate that
is never tried is never measured. For the same reason every `RETRY`th time that a tier's blocks
would not be loaded, they are loaded all the same.

Knows: rates, lengths, counts. Does not know: a clock, the tree, or what a block holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from prefix_cache.ascent import Whereabouts
from storage.move import Tier

Loads = Literal["auto", "always", "never"]
"""What a request asks for: by measured curves; whatever there is; nothing."""

LOWER = (Tier.HOST, Tier.DISK)  # in the order in which they lie along a prefix
# Bytes a second of a copy to the device, until one has been measured. The host's is a high guess:
# with a low one nothing would be loaded from there, and so nothing measured.
FIRST_GUESS = {Tier.HOST: 2e10, Tier.DISK: 2e8}
WEIGHT = 0.2  # of a new measurement in the running mean
MIN_CONTEXT = 256  # tokens; contexts below are measured together
RETRY = 32


class PrefillCurve:
    """Seconds that a token of a prompt takes, by the length of the context it is computed in.

    A running mean for every doubling of the context; a length without one takes the nearest.
    """

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    @property
    def is_measured(self) -> bool:
        """Whether anything is known."""
        return bool(self._means)

    def add(self, tokens: int, context: int, seconds: float) -> None:
        """`tokens` ending at position `context` took `seconds`."""
        bucket, value = _bucket(context), seconds / tokens
        self._means[bucket] = _mean(self._means.get(bucket), value)

    def seconds(self, start: int, end: int) -> float:
        """How long the tokens [start, end) of one prompt take; 0 as long as nothing is known."""
        total = 0.0
        while self._means and start < end:
            bucket = _bucket(start + 1)
            stop = min(end, MIN_CONTEXT << bucket)
            total += (stop - start) * self._per_token(bucket)
            start = stop
        return total

    def tokens_per_second(self) -> dict[int, float]:
        """The curve: the longest context of each measured bucket, and its rate."""
        return {MIN_CONTEXT << b: 1 / mean for b, mean in sorted(self._means.items()) if mean}

    def _per_token(self, bucket: int) -> float:
        nearest = min(self._means, key=lambda known: (abs(known - bucket), known))
        return self._means[nearest]


class CopyRate:
    """Seconds that a block takes from one tier to the device: a guess, then a running mean."""

    def __init__(self, first_guess: float) -> None:
        self.per_block = first_guess
        self.is_measured = False

    def add(self, blocks: int, seconds: float) -> None:
        """Measure: `blocks` blocks came in `seconds` during which copies were under way."""
        value = seconds / blocks
        self.per_block = _mean(self.per_block if self.is_measured else None, value)
        self.is_measured = True


@dataclass(frozen=True, slots=True)
class Queue:
    """What lies before a request: tokens to be computed, and blocks on their way by tier."""

    tokens: int = 0
    copies: Mapping[Tier, int] = field(default_factory=dict)


NO_QUEUE = Queue()


@dataclass(slots=True)
class Choices:
    """What was chosen for lower blocks that requests found, in blocks by tier."""

    chosen: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(LOWER, 0))
    refused: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(LOWER, 0))


class LoadOrRecompute:
    """The rates, the decision and its counts. One owner thread."""

    def __init__(self, *, block_size: int, block_bytes: int) -> None:
        self.prefill = PrefillCurve()
        self.copies = {tier: CopyRate(block_bytes / rate) for tier, rate in FIRST_GUESS.items()}
        self.choices = Choices()
        self.block_bytes = block_bytes
        self._block_size = block_size
        self._times_refused = dict.fromkeys(LOWER, 0)

    def load_blocks(
        self, found: Whereabouts, num_tokens: int, queue: Queue = NO_QUEUE, asked: Loads = "auto"
    ) -> int:
        """How many of `found`'s lower blocks to load for a prompt of `num_tokens`."""
        lower = found.host + found.disk
        if asked == "always":
            return lower
        if asked == "never" or not lower:
            return 0
        if not self.prefill.is_measured:
            return lower
        loads = self._candidates(found)
        quickest = min(loads, key=lambda n: (self.seconds(n, found, num_tokens, queue), -n))
        return max(quickest, self._on_trial(found, quickest))

    def seconds(self, loads: int, found: Whereabouts, num_tokens: int, queue: Queue) -> float:
        """Time to the first token when `loads` of the lower blocks are loaded."""
        host = min(loads, found.host)
        parts = {Tier.HOST: host, Tier.DISK: loads - host}
        copied = max(
            (
                (queue.copies.get(tier, 0) + blocks) * self.copies[tier].per_block
                for tier, blocks in parts.items()
                if blocks
            ),
            default=0.0,
        )
        waited = self.prefill.seconds(0, queue.tokens)
        first = (found.device + found.coming + loads) * self._block_size
        return max(copied, waited) + self.prefill.seconds(min(first, num_tokens), num_tokens)

    def count(self, found: Whereabouts, loads: int) -> None:
        """Count that a request was given a lease which loads `loads` of `found`'s lower blocks."""
        host = min(loads, found.host)
        for tier, there, chosen in (
            (Tier.HOST, found.host, host),
            (Tier.DISK, found.disk, loads - host),
        ):
            self.choices.chosen[tier] += chosen
            self.choices.refused[tier] += there - chosen
            # A trial counts as well: what it has measured speaks for itself from now on.
            self._times_refused[tier] += there > chosen or (chosen > 0 and self._is_due(tier))

    def _candidates(self, found: Whereabouts) -> set[int]:
        """Nothing, half or all of a tier: in between the time is nearly linear."""
        host, disk = found.host, found.disk
        return {0, host // 2, host, host + disk // 2, host + disk}

    def _on_trial(self, found: Whereabouts, loads: int) -> int:
        """Blocks of a tier that was refused often enough to be tried again."""
        host_is_due = loads < found.host and self._is_due(Tier.HOST)
        disk_is_due = loads < found.host + found.disk and found.disk and self._is_due(Tier.DISK)
        if disk_is_due:
            return found.host + found.disk
        return found.host if host_is_due else 0

    def _is_due(self, tier: Tier) -> bool:
        return self._times_refused[tier] % RETRY == RETRY - 1


def _bucket(context: int) -> int:
    """0 up to the smallest context, 1 up to twice that, and so on."""
    return ((max(context, 1) - 1) // MIN_CONTEXT).bit_length()


def _mean(before: float | None, value: float) -> float:
    return value if before is None else before + WEIGHT * (value - before)
