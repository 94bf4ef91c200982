"""The sampling parameters of the request in each batch slot, written when it gets the slot.

A step therefore reads only a few numbers per row, for any options of a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.link.messages import SamplingParams
from engine.step import NewRequest

# A lower temperature counts as 0: the most likely token would be drawn anyway, and dividing by the
# temperature could overflow.
GREEDY_TEMPERATURE = 1e-5
NO_TOP_P = 2.0  # larger than any cumulative probability, even after rounding
SMALLEST_TOP_P = 1e-9  # keeps only the most likely token; 0 would keep none

# The flags for what a row needs in addition to a plain sample.
FILTERED, PENALISED, BIASED, BANNING, REPORTING, CONSTRAINED = 1, 2, 4, 8, 16, 32

Slots = npt.NDArray[np.int64]
Asked = npt.NDArray[Any]  # structured array with the fields `ASKED`
ASKED = np.dtype(
    [
        ("kind", np.uint8),
        ("temperature", np.float32),  # 0: select the most likely token
        ("top_k", np.int64),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("repetition", np.float32),
        ("num_biases", np.int64),
        ("num_banned", np.int64),
        ("first_stop", np.int64),  # sequence length from which stop tokens are not banned any more
        ("num_logprobs", np.int64),
        ("prompt_logprobs", np.int64),
    ]
)


class SlotParams:
    """The sampling parameters (`ASKED`) of all batch slots. Used by one thread only."""

    def __init__(
        self, num_batch_slots: int, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._table: Asked = np.zeros(num_batch_slots, ASKED)
        self.seeds: list[int | None] = [None] * num_batch_slots

    def write(self, updates: Iterable[NewRequest]) -> None:
        """Write the parameters of new requests to their batch slots."""
        for one in updates:
            self._table[one.batch_slot] = self._asked(one)
            self.seeds[one.batch_slot] = one.sampling.seed

    def read(self, batch_slots: Slots) -> Asked:
        """Return a copy of the parameters in `batch_slots`."""
        return self._table[batch_slots]

    def scoring(self, batch_slots: Slots) -> Asked:
        """Return parameters for scored rows: only their requests' options for reports."""
        asked = np.zeros(len(batch_slots), ASKED)
        asked["kind"] = REPORTING
        asked["num_logprobs"] = self._table["prompt_logprobs"][batch_slots]
        return asked

    def banned(self, sampling: SamplingParams) -> list[int]:
        """Return the tokens that end a sequence. They are banned until `min_tokens`."""
        if not sampling.min_tokens:
            return []
        eos = frozenset[int]() if sampling.ignore_eos else self._eos_token_ids
        # A request's stop token may be outside the vocabulary. It is never sampled then.
        ending = sampling.stop_token_ids | eos
        return [token_id for token_id in ending if 0 <= token_id < self._vocab_size]

    def _asked(self, request: NewRequest) -> tuple[float, ...]:
        sampling = request.sampling
        num_banned = len(self.banned(sampling))
        reported = sampling.num_logprobs
        return (
            kind_of(sampling)
            | (BANNING if num_banned else 0)
            | (CONSTRAINED if request.is_constrained else 0),
            0.0 if is_greedy(sampling) else sampling.temperature,
            min(sampling.top_k or self._vocab_size, self._vocab_size),
            NO_TOP_P if sampling.top_p >= 1.0 else max(sampling.top_p, SMALLEST_TOP_P),
            sampling.min_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
            len(sampling.logit_bias),
            num_banned,
            request.prompt_len + sampling.min_tokens,
            min(reported or 0, self._vocab_size),
            min(sampling.prompt_logprobs or 0, self._vocab_size),
        )


def kind_of(sampling: SamplingParams) -> int:
    """Return the flags for a request's options, except BANNING and CONSTRAINED."""
    filtered = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    kinds = {
        FILTERED: filtered and not is_greedy(sampling),
        PENALISED: is_penalised(sampling),
        BIASED: len(sampling.logit_bias) > 0,
        REPORTING: sampling.num_logprobs is not None,
    }
    return sum(kind for kind, is_asked in kinds.items() if is_asked)


def is_greedy(sampling: SamplingParams) -> bool:
    """Return whether a request always selects the most likely token."""
    return sampling.temperature < GREEDY_TEMPERATURE or sampling.top_k == 1


def is_penalised(sampling: SamplingParams) -> bool:
    """Return whether earlier tokens change a request's logits."""
    return (
        sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.repetition_penalty != 1.0
    )
