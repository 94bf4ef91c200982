"""The plan to sample the rows of one step, as data.

The records are the same on the host and on the device: `A` is numpy's array or torch's tensor,
and `on_device` takes a whole plan across in one copy.
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
    """All R rows of a step, sampled at random; temperature 0 takes the most likely token.

    `keys` (R, 2) int32, `temperature` (R,) float32.
    """

    keys: A
    temperature: A


@dataclass(frozen=True, slots=True)
class Filters(Generic[A]):
    """K rows sampled from their most likely tokens: `rows` and `top_k` (K,) int64.

    `temperature`, `top_p` and `log_min_p` (K,) float32.
    """

    rows: A
    temperature: A
    top_k: A
    top_p: A
    log_min_p: A


@dataclass(frozen=True, slots=True)
class Penalties(Generic[A]):
    """K rows with a penalty.

    `rows`, `batch_slots` (K,) int64; the penalties (K,) float32. Of P of them the last token of the
    output is not counted yet: `uncounted_rows`, `uncounted_slots` (P,) int64; nor are Q accepted
    drafts: `accepted_slots`, `accepted_ids` (Q,) int64. `draft_ids` (D,) int64 count only for the
    rows with the indices `draft_rows` (D,) int64 among the K.
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
    """Rows with changes of single logits, from the tables at their batch slots.

    `rows`, `batch_slots` (K,) int64. `most`: the longest of their lists.
    """

    rows: A
    batch_slots: A
    most: int


@dataclass(frozen=True, slots=True)
class Masks(Generic[A]):
    """K rows with a mask of allowed tokens: `rows` (K,) int64.

    `words` (K, W) int32: a bit for each token of the vocabulary, from the lowest of the first on.
    """

    rows: A
    words: A


@dataclass(frozen=True, slots=True)
class WantedLogprobs(Generic[A]):
    """L rows that report log-probabilities: `rows` (L,) int64.

    `counts`: how many of the likeliest each reports. `given` (L,) int64: the token that each
    reports, with its rank; `SAMPLED` in place of one: the token that it samples. None: all are.
    """

    rows: A
    counts: tuple[int, ...]
    given: A | None = None

    @property
    def most(self) -> int:
        """The largest number of reported log-probabilities."""
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class SamplingPlan(Generic[A]):
    """Plan to sample every row of a step; None for a part that no row needs.

    The lists and counts of `new` go to the tables first.
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
    """Copy the plan to the device, with tensors in place of arrays."""
    tensors = iter(to_device(list(_arrays(plan)), device))
    return cast(DevicePlan, _replaced(plan, tensors))


def _arrays(part: Any) -> Iterator[HostArray]:
    for item in _items(part):
        if isinstance(item, np.ndarray):
            yield item
        elif is_dataclass(item):
            yield from _arrays(item)


def _replaced(part: Any, tensors: Iterator[Tensor]) -> Any:
    """Copy a record, with `tensors` in place of its arrays, in the order of `_arrays`."""
    return type(part)(*(_replacement(item, tensors) for item in _items(part)))


def _replacement(item: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(item, np.ndarray):
        return next(tensors)
    return _replaced(item, tensors) if is_dataclass(item) else item


def _items(part: Any) -> list[Any]:
    return [getattr(part, field.name) for field in fields(part)]
