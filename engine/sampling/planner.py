"""The planner: it prepares a step's sampling before the logits are computed.

Rows are grouped by the sampling options that they use, so an option that no row uses costs nothing.
A request's options are read only once, when it gets its batch slot. Later steps only refer to batch
slots, so the host's time per row does not depend on its options.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import xxhash

from engine.sampling.counted import CountedTokens, drafts_before, follow_drafts
from engine.sampling.plan import (
    SAMPLED,
    Edits,
    Filters,
    HostPlan,
    Masks,
    Penalties,
    Randomness,
    SamplingPlan,
    WantedLogprobs,
)
from engine.sampling.slot_params import (
    BANNING,
    BIASED,
    CONSTRAINED,
    FILTERED,
    PENALISED,
    REPORTING,
    Asked,
    SlotParams,
    Slots,
)
from engine.step import SCORE, Bitmask, NewRequest, Row
from engine.transfers import HostArray

Rows = npt.NDArray[np.int64]
SEED_MASK = (1 << 64) - 1
MASK_BITS = 32


class Planner:
    """A planner for one model.

    `fresh_seed` returns 64 random bits for rows without a seed. A plan affects later plans only if
    `launched` is called. Used by one thread only.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        fresh_seed: Callable[[], int],
        num_batch_slots: int,
    ) -> None:
        self._fresh_seed = fresh_seed
        self._num_words = -(-vocab_size // MASK_BITS)
        self._last_word = np.uint32(0xFFFFFFFF >> -vocab_size % MASK_BITS).astype(np.int32)
        self.params = SlotParams(num_batch_slots, vocab_size, eos_token_ids)
        self._counted = CountedTokens(num_batch_slots)

    def plain(
        self, rows: Sequence[Row], *, are_masked: bool = False
    ) -> Randomness[HostArray] | None:
        """Plan `rows` as one group, or return None if a row needs more than a plain sample.

        A plain sample is drawn from all tokens, or is the most likely token. With `are_masked`,
        rows with masks count as plain.
        """
        self.params.write(_new(rows))
        asked = self._asked(rows)
        return (
            None
            if _asks_for_more(asked, rows, BANNING | (CONSTRAINED if are_masked else 0))
            else self._draw(rows, asked)
        )

    def masks(self, rows: Sequence[Row], allowed: Sequence[Bitmask | None]) -> Masks[HostArray]:
        """Plan the masks `allowed`. There is one for each row with a constraint, in order.

        A mask of None allows no token. Raises RuntimeError if the number of masks is wrong.
        """
        masked = _rows(self._asked(rows), CONSTRAINED)
        if len(masked) != len(allowed):
            raise RuntimeError(f"{len(masked)} rows need a mask, and {len(allowed)} masks came")
        words = np.zeros((len(masked), self._num_words), np.int32)
        for row, mask in zip(words, allowed, strict=True):
            if mask is not None:
                row[:] = mask
        words[:, -1] &= self._last_word  # clear bits beyond the vocabulary, which may be set
        return Masks(masked, words)

    def plan(self, rows: Sequence[Row], allowed: Sequence[Bitmask | None] = ()) -> HostPlan:
        """Plan the sampling of each of `rows`. For `allowed`, see `masks`."""
        batch_slots, new = _batch_slots(rows), _new(rows)
        self.params.write(new)
        self._counted.restart(new)
        asked = self._asked(rows)
        return SamplingPlan(
            new=new,
            draw=self._draw(rows, asked),
            filters=_filters(asked),
            penalties=self._penalties(rows, asked, batch_slots),
            biases=_edits(asked, batch_slots, _rows(asked, BIASED), "num_biases"),
            bans=_edits(asked, batch_slots, _banning(asked, rows), "num_banned"),
            masks=self.masks(rows, allowed) if (asked["kind"] & CONSTRAINED).any() else None,
            wanted=_wanted(asked, rows),
        )

    def launched(self, rows: Sequence[Row]) -> None:
        """Record that the plan for `rows` was launched, so that it has updated the tables."""
        self._counted.launched(rows[: len(rows) - _count_scored(rows)])

    def _asked(self, rows: Sequence[Row]) -> Asked:
        batch_slots = _batch_slots(rows)
        asked, scored = self.params.read(batch_slots), _count_scored(rows)
        if scored:
            asked[-scored:] = self.params.scoring(batch_slots[-scored:])
        return asked

    def _draw(self, rows: Sequence[Row], asked: Asked) -> Randomness[HostArray]:
        temperature = asked["temperature"].copy()
        keys = np.zeros((len(rows), 2), np.int32)
        random_rows = np.flatnonzero(temperature)
        if len(random_rows):
            keys[random_rows] = [self._key(rows[index]) for index in random_rows.tolist()]
        return Randomness(keys, temperature)

    def _key(self, row: Row) -> tuple[int, int]:
        seed = self.params.seeds[row.batch_slot]
        return noise_key(self._fresh_seed() if seed is None else seed, row.end)

    def _penalties(
        self, given: Sequence[Row], asked: Asked, batch_slots: Slots
    ) -> Penalties[HostArray] | None:
        rows = _rows(asked, PENALISED)
        if not len(rows):
            return None
        penalised = [given[row] for row in rows.tolist()]
        follows = follow_drafts(penalised)
        firsts, ends = rows[~follows], _lengths(penalised)[~follows]
        uncounted = firsts[self._counted.lacking(batch_slots[firsts], ends)]
        accepted_slots, accepted_ids = self._counted.accepted(batch_slots[firsts], ends)
        draft_rows, draft_ids = drafts_before(penalised, follows)
        return Penalties(
            rows=rows,
            batch_slots=batch_slots[rows],
            presence=asked["presence"][rows],
            frequency=asked["frequency"][rows],
            repetition=asked["repetition"][rows],
            uncounted_rows=uncounted,
            uncounted_slots=batch_slots[uncounted],
            accepted_slots=accepted_slots,
            accepted_ids=accepted_ids,
            draft_rows=draft_rows,
            draft_ids=draft_ids,
        )


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Make the noise key, two int32 words, for the token that is sampled at `position`.

    A sequence with a seed draws the same noise in any batch, and also after a preemption.
    """
    digest = xxhash.xxh3_64_digest(struct.pack("<QQ", seed & SEED_MASK, position))
    first, second = struct.unpack("<ii", digest)
    return first, second


def _new(rows: Sequence[Row]) -> list[NewRequest]:
    return [row.new for row in rows if row.new is not None]


def _batch_slots(rows: Sequence[Row]) -> Slots:
    return np.array([row.batch_slot for row in rows], np.int64)


def _asks_for_more(asked: Asked, given: Sequence[Row], beside: int) -> bool:
    kinds = asked["kind"]
    if not kinds.any():
        return False
    return bool((kinds & ~np.uint8(beside)).any()) or len(_banning(asked, given)) > 0


def _rows(asked: Asked, kind: int) -> Rows:
    return np.flatnonzero(asked["kind"] & kind)


def _lengths(rows: Sequence[Row]) -> npt.NDArray[np.int64]:
    return np.array([row.end for row in rows], np.int64)


def _banning(asked: Asked, given: Sequence[Row]) -> Rows:
    rows = _rows(asked, BANNING)
    if not len(rows):
        return rows
    lengths = _lengths([given[row] for row in rows.tolist()])
    return rows[lengths < asked["first_stop"][rows]]


def _filters(asked: Asked) -> Filters[HostArray] | None:
    rows = _rows(asked, FILTERED)
    if not len(rows):
        return None
    temperature, top_k, top_p = (asked[name][rows] for name in ("temperature", "top_k", "top_p"))
    with np.errstate(divide="ignore"):
        log_min_p = np.log(asked["min_p"][rows])
    return Filters(rows, temperature, top_k, top_p, log_min_p)


def _edits(asked: Asked, batch_slots: Slots, rows: Rows, length: str) -> Edits[HostArray] | None:
    if not len(rows):
        return None
    return Edits(rows, batch_slots[rows], int(asked[length][rows].max()))


def _wanted(asked: Asked, given: Sequence[Row]) -> WantedLogprobs[HostArray] | None:
    rows = _rows(asked, REPORTING)
    if not len(rows):
        return None
    counts, scored = tuple(asked["num_logprobs"][rows].tolist()), _count_scored(given)
    if not scored:
        return WantedLogprobs(rows, counts)
    told = np.full(len(rows), SAMPLED, np.int64)
    # All scored rows report, and they come last.
    told[-scored:] = [_next_id(row) for row in given[-scored:]]
    return WantedLogprobs(rows, counts, told)


def _count_scored(rows: Sequence[Row]) -> int:
    return sum(1 for _ in takewhile(lambda row: row.kind is SCORE, reversed(rows)))


def _next_id(row: Row) -> int:
    return int(np.frombuffer(row.next_ids, np.int32)[row.num_new - 1])
