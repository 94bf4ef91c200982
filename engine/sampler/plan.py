"""How the rows of one step are sampled, as data.

The records are the same on the host and on the device: `A` is numpy's array or torch's tensor,
and `on_device` takes a whole plan across in one copy.

Knows: what each way of choosing needs. Does not know: sequences (`planner`) or logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from engine.staging import HostArray, to_device

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Draw(Generic[A]):
    """Rows drawn at random, K of them; at temperature 0 the likeliest token is taken.

    `rows` (K,) int64, `keys` (K, 2) int32, `temperature` (K,) float32.
    """

    rows: A
    keys: A
    temperature: A


@dataclass(frozen=True, slots=True)
class FilteredDraw(Generic[A]):
    """Rows drawn among their likelier tokens: `top_k` int64, `top_p` and `log_min_p` float32.

    `limits_k`: whether any row's top_k is less than the vocabulary.
    """

    draw: Draw[A]
    top_k: A
    top_p: A
    log_min_p: A
    limits_k: bool


@dataclass(frozen=True, slots=True)
class Penalties(Generic[A]):
    """Rows with a penalty, K of them, and the tokens they have.

    The penalties are (K,) float32. The indices are flat, into (K, vocabulary), int64; the
    prompt's are given for rows with a repetition penalty alone. `pending` (P,) int64: the rows,
    of the K, whose last output token is known to the device alone.
    """

    rows: A
    presence: A
    frequency: A
    repetition: A
    output_index: A
    prompt_index: A
    pending: A


@dataclass(frozen=True, slots=True)
class Edits(Generic[A]):
    """Single logits to change: `bias` is added at `bias_index`, `banned_index` is ruled out.

    The indices are flat, into (rows, vocabulary), int64.
    """

    bias_index: A
    bias: A
    banned_index: A


@dataclass(frozen=True, slots=True)
class Wanted(Generic[A]):
    """Rows that report log-probabilities, and how many of the likeliest each reports."""

    rows: A
    counts: tuple[int, ...]

    @property
    def most(self) -> int:
        """The longest report."""
        return max(self.counts)


@dataclass(frozen=True, slots=True)
class SamplingPlan(Generic[A]):
    """How every row of a step is sampled; None where no row asks for it.

    Every row is in exactly one of the first two groups.
    """

    plain: Draw[A] | None
    filtered: FilteredDraw[A] | None
    penalties: Penalties[A] | None
    edits: Edits[A] | None
    wanted: Wanted[A] | None


HostPlan = SamplingPlan[HostArray]
DevicePlan = SamplingPlan[Tensor]


def on_device(plan: HostPlan, device: torch.device) -> DevicePlan:
    """The plan with tensors in place of arrays."""
    tensors = iter(to_device(list(_arrays(plan)), device))
    return cast(DevicePlan, _replaced(plan, tensors))


def _arrays(part: Any) -> Iterator[HostArray]:
    for item in _items(part):
        if isinstance(item, np.ndarray):
            yield item
        elif is_dataclass(item):
            yield from _arrays(item)


def _replaced(part: Any, tensors: Iterator[Tensor]) -> Any:
    """A copy of a record with its arrays, in the order of `_arrays`, replaced."""
    return type(part)(*(_replacement(item, tensors) for item in _items(part)))


def _replacement(item: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(item, np.ndarray):
        return next(tensors)
    return _replaced(item, tensors) if is_dataclass(item) else item


def _items(part: Any) -> list[Any]:
    return [getattr(part, field.name) for field in fields(part)]
