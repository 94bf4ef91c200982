"""The matrices of an adapter that change experts, in the two forms that PEFT writes.

    experts.3.up_proj        A (rank, in)      B (out, rank)      a matrix of one expert
    experts[.base_layer]     A (E rank, in)    B (out, rank E)    all experts (`target_parameters`)

Both forms are converted to one stack for each matrix: A (E rank, in) and B (out, E rank), in the
order of experts. An expert that the adapter does not change gets zeros. In the second form, the
sizes of A and B show which matrices they change.

Elsewhere: tensors on the device (`adapted_experts`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from engine.models.adapters.errors import AdapterRefused
from engine.models.modules import ExpertsConfig, LinearConfig

ExpertsByLayer = Mapping[str, ExpertsConfig]
_LAYER = re.compile(r"model\.layers\.\d+\.")
_OF_ALL = re.compile(r"[\w.]*experts(\.base_layer)*")


class Stack(NamedTuple):
    """The A and B of one matrix of all experts, without the scale."""

    name: str
    is_joined: bool  # True if the file has A and B for gate and up as one tensor
    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class ExpertPlace:
    """The target of a tensor: one matrix of one expert, or the matrices of all experts."""

    config: ExpertsConfig
    matrix: str | None = None  # None: the matrices of all experts
    expert: int = 0


def stacked(config: ExpertsConfig) -> tuple[LinearConfig, LinearConfig]:
    """Return the configs of an expert's inner matrices (gate and up), and of its matrix `down`."""
    *inner, down = (config.prefix + name for name in config.names)
    rows = tuple((name, config.size) for name in inner)
    back = ((down, config.size_in),)
    return (
        LinearConfig(rows, config.size_in, False, "rows", of_expert=True),
        LinearConfig(back, config.size, False, "columns", of_expert=True),
    )


def place_of(own: str, experts: ExpertsByLayer) -> ExpertPlace | None:
    """Return the target that the name `own` means, or None if it is not of experts."""
    layer = _LAYER.match(own)
    config = None if layer is None else experts.get(layer[0])
    if layer is None or config is None:
        return None
    if _OF_ALL.fullmatch(own, layer.end()):
        return ExpertPlace(config)
    number, _, matrix = own.removeprefix(config.prefix).partition(".")
    if not own.startswith(config.prefix) or matrix not in config.names or not number.isdecimal():
        return None
    if int(number) >= config.num_experts:
        raise AdapterRefused(f"{own}: the model has {config.num_experts} experts")
    return ExpertPlace(config, matrix, int(number))


def stack_of_all(name: str, config: ExpertsConfig, a: Tensor, b: Tensor) -> Iterator[Stack]:
    """Yield the stacks of A and B for all experts. The sizes determine the changed matrices."""
    inner, down = stacked(config)
    rank, rest = divmod(len(a), config.num_experts)
    sizes = [*a.shape[1:], *b.shape[:1]] if config.halves else [*b.shape[:1], *a.shape[1:]]
    fitting = [one for one in (inner, down) if sizes == [one.size_out, one.size_in]]
    if rest or b.shape[1:] != a.shape[:1] or len(fitting) != 1:
        raise AdapterRefused(
            f"{name}: lora_A {(*a.shape,)} and lora_B {(*b.shape,)} do not tell which matrices of "
            f"{config.num_experts} experts they change"
        )
    [matrix] = fitting
    by_expert = b.view(b.shape[0], rank, config.num_experts).transpose(1, 2)
    if config.halves:  # PEFT mistakes the tensor's inputs for outputs, because inputs come first
        by_expert, a = a.view(-1, rank, a.shape[1]).permute(2, 0, 1), by_expert.permute(1, 2, 0)
        a = a.flatten(0, 1)
    count = len(matrix.rows)
    if config.packed and not config.halves and count > 1:  # the rows of gate and up alternate
        parts = [by_expert[part::count] for part in range(count)]
    else:
        parts = [*by_expert.chunk(count)]
    for (own, _), part in zip(matrix.rows, parts, strict=True):
        yield Stack(own, matrix is inner and count > 1, a, part.flatten(1))


def stack_of_each(
    config: ExpertsConfig, matrix: str, pairs: Mapping[int, tuple[Tensor, Tensor]]
) -> Stack:
    """Stack the (A, B) matrices of single experts, by expert number.

    All A have the same size, and so have all B.
    """
    a, b = next(iter(pairs.values()))
    (rank, size_in), rows, count = a.shape, b.shape[0], config.num_experts
    all_a, all_b = a.new_zeros((count, rank, size_in)), b.new_zeros((rows, count, rank))
    for expert, (one_a, one_b) in pairs.items():
        all_a[expert], all_b[:, expert] = one_a, one_b
    return Stack(config.prefix + matrix, False, all_a.flatten(0, 1), all_b.flatten(1))


def by_expert(a: Tensor, b: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Return the stack as A (E, rank, in) and B (E, out, rank)."""
    apart = b.view(b.shape[0], num_experts, -1).transpose(0, 1)
    return a.view(num_experts, -1, a.shape[1]), apart


def of_layer(config: ExpertsConfig) -> str:
    """Return the prefix of the names of tensors in the experts' layer."""
    layer = _LAYER.match(config.prefix)
    assert layer is not None, "experts are in a layer"
    return layer[0]


def num_numbers(config: ExpertsConfig, rank: int) -> int:
    """Count the numbers in A and B of rank `rank`, for all matrices of all experts."""
    sizes = (rows + one.size_in for one in stacked(config) for _, rows in one.rows)
    return rank * config.num_experts * sum(sizes)
