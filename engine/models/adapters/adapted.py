"""The matrices of a decoder, each with memory for the matrices of adapters.

    product = base(x) + B[slot] A[slot] x        each token has a slot; slot 0: no adapter

For every matrix that an adapter may change, tensors of a fixed size hold the A and B of all slots.
Captured graphs therefore work for any adapters. If no adapters are served, the matrices are not
wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from engine.models.adapters.adapted_experts import ExpertsRoom
from engine.models.adapters.adapter import Adapter, AdapterShapes
from engine.models.adapters.adapter_experts import of_layer, stacked
from engine.models.adapters.adapter_part import AdapterPart
from engine.models.config import ModelConfig
from engine.models.layers.norms import RmsNorm
from engine.models.modules import (
    CheckpointTensor,
    Experts,
    ExpertsConfig,
    Linear,
    LinearConfig,
    walk,
)
from engine.models.parameters import Parameters, empty_parameters
from kernels.adapters.slots import SlotMatrices
from kernels.linear.fp8_rows import Fp8Rows
from kernels.ops import Ops

TARGETS = frozenset(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))


@dataclass(frozen=True, slots=True)
class AdaptedLinear(Linear):
    """A matrix in any weight format, with the adapters' matrices that add to its product.

    Inputs must be unquantised, because A multiplies unquantised inputs. The model's matrix
    quantises its inputs itself.
    """

    config: LinearConfig
    base: Linear
    matrices: SlotMatrices

    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        product = self.base.product(ops, x)
        if ops.adapters is None:
            return product
        return ops.add_adapters(product, cast("Tensor", x), self.matrices, ops.adapters)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the model's matrix, without adapters."""
        return self.base.dense(dtype)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the tensors of the model's matrix, without adapters."""
        return self.base.checkpoint_tensors()

    def fill(self, generator: torch.Generator) -> None:
        self.base.fill(generator)


class RankPart(NamedTuple):
    """A rank of several that divide the layers of a stage."""

    rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """The matrices of all adapters, on the decoder's device. Slot 0 never has an adapter."""

    linears: tuple[AdaptedLinear, ...]
    experts: tuple[ExpertsRoom, ...]
    num_slots: int  # number of slots, including slot 0
    fits: AdapterShapes

    @torch.inference_mode()
    def load(self, slot: int, adapter: Adapter) -> None:
        """Copy an adapter to a slot, after all earlier launches and before all later launches."""
        if not 0 < slot < self.num_slots:
            raise IndexError(f"there is no slot {slot} for an adapter")
        for linear in self.linears:
            linear.matrices.clear(slot)
            for part, (name, _) in enumerate(linear.config.rows):
                pair = adapter.matrices.get(name)
                if pair is not None:
                    linear.matrices.load(slot, part, *pair)
        for room in self.experts:
            room.load(slot, adapter)


def with_adapters(
    model: ModelConfig,
    parameters: Parameters,
    num_adapters: int,
    most_rank: int,
    part: RankPart | None = None,
    *,
    of_experts: bool = False,
) -> tuple[Parameters, AdapterSlots]:
    """Add memory for `num_adapters` of rank up to `most_rank` to loaded parameters.

    The memory is on the parameters' device. `part` is the rank to which `parameters` belong, or
    None if they are all of `model`.
    """
    num_slots, linears, rooms = num_adapters + 1, list[AdaptedLinear](), list[ExpertsRoom]()
    like = parameters.embedding

    def adapted(base: Linear | Experts) -> Linear | Experts:
        if isinstance(base, Experts):
            if not of_experts:
                return base
            rooms.append(ExpertsRoom.empty(base.config, num_adapters, most_rank, like))
            return replace(base, room=rooms[-1].slots)
        config = base.config
        if not _is_adapted(config):
            return base
        rows = [count for _, count in config.rows]
        matrices = SlotMatrices.zeros(num_slots, rows, config.size_in, most_rank, like)
        linears.append(AdaptedLinear(config, base, matrices))
        return linears[-1]

    layers = tuple(_rebuilt(layer, adapted) for layer in parameters.layers)
    own = Adaptable.of(linears, rooms)
    whole = own if part is None else Adaptable.whole(model, like.dtype, of_experts)
    held = None
    if part is not None:
        held = AdapterPart.of(whole.configs, own.configs, part.rank, part.num_ranks)
    shapes = {name: (rows, one.size_in) for one in whole.linears for name, rows in one.rows}
    experts = {of_layer(one): one for one in whole.experts}
    fits = AdapterShapes(shapes, model.names, most_rank, like.dtype, held, experts)
    return replace(parameters, layers=layers), AdapterSlots(
        tuple(linears), tuple(rooms), num_slots, fits
    )


class Adaptable(NamedTuple):
    """The configs of the matrices and experts that an adapter may change."""

    linears: tuple[LinearConfig, ...]
    experts: tuple[ExpertsConfig, ...]

    @property
    def configs(self) -> tuple[LinearConfig, ...]:
        """The configs of all matrices. For a mixture, they are those of one expert."""
        return (*self.linears, *(one for config in self.experts for one in stacked(config)))

    @classmethod
    def of(cls, linears: Iterable[AdaptedLinear], experts: Iterable[ExpertsRoom]) -> Adaptable:
        """Collect the configs of the matrices and experts that have memory for adapters."""
        return cls(tuple(one.config for one in linears), tuple(one.config for one in experts))

    @classmethod
    def whole(cls, model: ModelConfig, dtype: torch.dtype, of_experts: bool) -> Adaptable:
        """Collect the configs of all matrices and experts of the model. Allocates no tensors."""
        layers = empty_parameters(model, dtype, torch.device("meta")).layers
        configs = (linear.config for linear in walk(layers, Linear))  # type: ignore[type-abstract]
        experts = walk(layers, Experts) if of_experts else ()  # type: ignore[type-abstract]
        return cls(tuple(filter(_is_adapted, configs)), tuple(one.config for one in experts))


def _is_adapted(config: LinearConfig) -> bool:
    names = (name.rpartition(".")[2] for name, _ in config.rows)
    return not config.plain and TARGETS.issuperset(names)


def _rebuilt(part: Any, adapted: Any) -> Any:
    """Replace each matrix of a layer by `adapted(matrix)`, and let its norms no longer quantise."""
    if isinstance(part, Linear | Experts):
        return adapted(part)
    if isinstance(part, RmsNorm):
        return replace(part, to_fp8=None)
    if isinstance(part, tuple):
        return tuple(_rebuilt(one, adapted) for one in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    changed = {}
    for field in fields(part):
        before = getattr(part, field.name)
        after = _rebuilt(before, adapted)
        if after is not before:
            changed[field.name] = after
    return replace(part, **changed) if changed else part
