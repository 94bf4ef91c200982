"""The plan to sample the rows of one step, as a data record.

Host and device use the same classes: `A` is NumPy's array or torch's tensor. `on_device` copies a
plan to the device in a single copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from engine.step import NewRequest
from engine.transfers import HostArray, to_device

A = TypeVar("A")
SAMPLED = -1


@dataclass(frozen=True, slots=True)
class Randomness(Generic[A]):
    """The noise keys and temperatures of all R rows of a step.

    Temperature 0 selects the most likely token. `keys` (R, 2) int32, `temperature` (R,) float32.
    """

    keys: A
    temperature: A


@dataclass(frozen=True, slots=True)
class Filters(Generic[A]):
    """The K rows with top-k, top-p or min-p: `rows` and `top_k` (K,) int64.

    `temperature`, `top_p` and `log_min_p` are (K,) float32.
    """

    rows: A
    temperature: A
    top_k: A
    top_p: A
    log_min_p: A


@dataclass(frozen=True, slots=True)
class Penalties(Generic[A]):
    """The K rows with a penalty.

    `rows` and `batch_slots` are (K,) int64, the penalties (K,) float32. Tokens that are not counted
    yet are the last tokens of P rows (`uncounted_rows` and `uncounted_slots`, (P,) int64) and Q
    accepted drafts (`accepted_slots` and `accepted_ids`, (Q,) int64). The drafts `draft_ids` (D,)
    int64 count only for the rows `draft_rows` (D,) int64, which are indices among the K rows.
    """

    rows: A
    batch_slots: A
    presence: A
    frequency: A
    repetition: A
    uncounted_rows: A
    uncounted_slots: A
    accepted_slots: A
    accepted_ids: A
    draft_rows: A
    draft_ids: A


@dataclass(frozen=True, slots=True)
class Edits(Generic[A]):
    """The K rows in which single logits are changed. The tables list the changes by batch slot.

    `rows` and `batch_slots` are (K,) int64. `most` is the length of the longest list.
    """

    rows: A
    batch_slots: A
    most: int


@dataclass(frozen=True, slots=True)
class Masks(Generic[A]):
    """The K rows with a mask of allowed tokens: `rows` (K,) int64.

    `words` (K, W) int32 have one bit per token. Token 0 is the lowest bit of the first word.
    """

    rows: A
    words: A


@dataclass(frozen=True, slots=True)
class WantedLogprobs(Generic[A]):
    """The L rows that report log-probabilities: `rows` (L,) int64.

    `counts` has the number of most likely tokens that each row reports. `given` (L,) int64 has the
    token that each row reports with its rank, or `SAMPLED` for the sampled token. Without `given`,
    all rows report the sampled token.
    """

    rows: A
    counts: tuple[int, ...]
    given: A | None = None

    @property
    def most(self) -> int:
        """The maximum number of most likely tokens that a row reports."""
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class SamplingPlan(Generic[A]):
    """The plan to sample every row of a step. A field is None if no row needs it.

    Before the sampling, the lists and counts of `new` requests are written to the tables.
    """

    new: Sequence[NewRequest]
    draw: Randomness[A]
    filters: Filters[A] | None
    penalties: Penalties[A] | None
    biases: Edits[A] | None
    bans: Edits[A] | None
    masks: Masks[A] | None
    wanted: WantedLogprobs[A] | None


HostPlan = SamplingPlan[HostArray]
DevicePlan = SamplingPlan[Tensor]


def on_device(plan: HostPlan, device: torch.device) -> DevicePlan:
    """Copy the plan to the device as tensors."""
    tensors = iter(to_device(list(_arrays(plan)), device))
    return cast(DevicePlan, _replaced(plan, tensors))


def _arrays(part: Any) -> Iterator[HostArray]:
    for item in _items(part):
        if isinstance(item, np.ndarray):
            yield item
        elif is_dataclass(item):
            yield from _arrays(item)


def _replaced(part: Any, tensors: Iterator[Tensor]) -> Any:
    return type(part)(*(_replacement(item, tensors) for item in _items(part)))


def _replacement(item: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(item, np.ndarray):
        return next(tensors)
    return _replaced(item, tensors) if is_dataclass(item) else item


def _items(part: Any) -> list[Any]:
    return [getattr(part, field.name) for field in fields(part)]
