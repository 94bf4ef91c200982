"""The parts of a layer, which this package calls modules: matrices and norms with tensors.

A module is a frozen dataclass. `walk` finds a layer's modules in its fields. Torch is imported only
for types, so an architecture's sizes can be read without torch.

Elsewhere: which modules there are (`layers`, `weight_formats`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from kernels.norms.gate import Gate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.models.rank_group import RankGroup
    from kernels.adapters.experts import ExpertSlots
    from kernels.experts.matrices import AnyMatrix
    from kernels.experts.route import Routed
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """A tensor's name in a model checkpoint, and the part of a parameter that the tensor fills.

    `shard_dim` is the dimension that shards divide, or None if every shard has the whole tensor.
    `sections` are the relative sizes of sections along `shard_dim`. Shards divide each section.
    `convert` turns the checkpoint's tensor into the kept tensor. `convert` raises CheckpointError,
    without the name, for values that are not served. `stored_shape` is the shape in the checkpoint
    that `convert` expects. Without `required`, the tensor may be absent, and `view` then has no
    elements. With `is_scale`, the tensor holds scales of weights, and the scales are checked.
    """

    name: str
    view: Tensor
    shard_dim: int | None = None
    convert: Callable[[Tensor], Tensor] | None = None
    stored_shape: tuple[int, ...] | None = None
    required: bool = True
    is_scale: bool = False
    sections: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """The config of a layer's matrix, (all rows, size_in), without tensors.

    Several matrices of a model checkpoint that multiply the same input are joined by rows. Shards
    divide the rows, or divide the columns and sum their products. A matrix of the checkpoint may
    have sections of rows, and shards divide each section.
    """

    rows: tuple[tuple[str, int], ...]  # name and rows of each matrix in the model checkpoint
    size_in: int
    bias: bool
    shards: Literal["rows", "columns"]
    in_parts: bool = True  # the product's reader adds split-K parts (`kernels.linear.split_k`)
    of_expert: bool = False
    plain: bool = False  # not quantised in any weight format
    sections: tuple[tuple[int, ...], ...] = ()  # rows of each matrix's sections; empty: no sections

    @property
    def in_sections(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """The name, the rows, and the rows of each section, of each matrix in the checkpoint."""
        sections = self.sections or tuple((rows,) for _, rows in self.rows)
        for (name, rows), own in zip(self.rows, sections, strict=True):
            yield name, rows, own

    @property
    def size_out(self) -> int:
        """The number of rows of all matrices."""
        return sum(rows for _, rows in self.rows)

    def named(
        self, suffix: str, tensor: Tensor, shard_dim: int | None
    ) -> Iterator[CheckpointTensor]:
        """Split `tensor`, whose first dimension is all rows, into the checkpoint's matrices."""
        views = tensor.split([rows for _, rows in self.rows])  # type: ignore[no-untyped-call]
        for (name, _, sections), view in zip(self.in_sections, views, strict=True):
            of_rows = sections if shard_dim == 0 else ()
            yield CheckpointTensor(f"{name}.{suffix}", view, shard_dim, sections=of_rows)


def side_by_side(
    prefix: str, sizes: dict[str, int], hidden: int, *, bias: bool, in_parts: bool = True
) -> LinearConfig:
    """Describe matrices that multiply the same input, given by name and rows, as one matrix."""
    rows = tuple((prefix + name, size) for name, size in sizes.items())
    return LinearConfig(rows, hidden, bias, "rows", in_parts)


class Module(ABC):
    """The tensors of a layer that belong together."""

    __slots__ = ()

    @abstractmethod
    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield views that together cover all tensors of the module once."""

    @abstractmethod
    def fill(self, generator: torch.Generator) -> None:
        """Fill the tensors with dummy values that keep the size of activations."""


class Linear(Module):
    """A matrix in some weight format."""

    __slots__ = ()
    config: LinearConfig

    @property
    def takes_fp8(self) -> Scaling | None:
        """The quantisation that the previous kernel may apply to the input, or None."""
        return None

    @abstractmethod
    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """Multiply x (T, size_in) -> (T, size_out), or in parts if `config` allows that.

        x may be in fp8 only if `takes_fp8` is not None, and may be unquantised even then.
        """

    @abstractmethod
    def dense(self, dtype: torch.dtype) -> Tensor:
        """Dequantise the matrix. Return (size_out, size_in) in the model's `dtype`."""


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """A matrix of an expert in the model checkpoint, and the part of a parameter that it fills.

    The parameter is `gate_up` or `down`. Shards divide the rows of `gate_up` and the columns of
    `down`.
    """

    name: str
    is_down: bool
    index: int = 0
    count: int = 1

    def of(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return the view of the part. `dim` is along the matrix's rows."""
        return tensor.chunk(self.count, dim)[self.index]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The config of the matrices of a layer's experts, without tensors.

    An expert's matrix is named by `prefix`, the expert's number and one of `names`. The inner
    matrices come first, then the projection back. If `packed`, the model checkpoint has one tensor
    for all experts, inputs first. Gate and up then alternate (gpt-oss), or are `halves` (Llama 4).
    """

    prefix: str
    names: tuple[str, ...]
    num_experts: int
    size_in: int
    size: int
    gate: Gate
    bias: bool = False
    packed: bool = False
    halves: bool = False

    @property
    def inner_size(self) -> int:
        """The number of rows of an expert's inner matrices together."""
        return self.gate.factors * self.size

    def matrices(self, expert: int) -> tuple[str, ...]:
        """Return the names of an expert's matrices, of which the last is the projection back."""
        return tuple(f"{self.prefix}{expert}.{name}" for name in self.names)

    def parts(self, expert: int) -> Iterator[ExpertPart]:
        """Yield an expert's matrices with their parts of `gate_up` or `down`."""
        *inner, down = self.matrices(expert)
        for index, name in enumerate(inner):
            yield ExpertPart(name, False, index, len(inner))
        yield ExpertPart(down, True)


@dataclass(frozen=True, slots=True)
class Experts(Module):
    """The experts of a layer in some weight format: `gate_up` (E, 2 I, H), `down` (E, H, I).

    Without a gate `gate_up` is (E, I, H). `room` has the adapters' matrices for these experts.
    """

    config: ExpertsConfig
    gate_up: AnyMatrix
    down: AnyMatrix
    room: ExpertSlots | None = field(default=None, kw_only=True)

    def product(self, ops: Ops, x: Tensor, routed: Routed) -> Tensor:
        """Compute x (T, H) -> (T, H), whole or in parts."""
        own = routed, self.gate_up, self.down, self.config.gate
        if self.room is None or ops.adapters is None:
            return ops.mixture(x, *own)
        return ops.adapted_mixture(x, *own, self.room, ops.adapters)


class Memory(Protocol):
    """An interface to a source of tensors, in place of torch's allocator."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate the next tensor, uninitialised."""
        ...


@dataclass(frozen=True, slots=True)
class Allocator:
    """An allocator of uninitialised tensors for a model's modules.

    If several ranks compute the model (`group`), configs have the sizes of this rank's part.
    """

    weight_format: WeightFormat
    dtype: torch.dtype
    device: torch.device
    group: RankGroup | None = None
    memory: Memory | None = None  # None: torch's allocator, on `device`

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate a tensor of the model's dtype, unless `dtype` is given."""
        import torch  # imported here, since sizes are read without torch

        if self.memory is not None:
            return self.memory.empty(shape, dtype or self.dtype)
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def linear(self, config: LinearConfig) -> Linear:
        """Allocate a matrix in the weight format of the model.

        If ranks divide the columns and sum their products, only the first rank adds the bias.
        """
        if self.group is not None and config.shards == "columns":
            bias = config.bias and self.group.rank == 0
            config = replace(config, bias=bias, in_parts=False)
        return self.weight_format.linear(config, self)

    def experts(self, config: ExpertsConfig) -> Experts:
        """Allocate experts in the weight format of the model."""
        return self.weight_format.experts(config, self)


class WeightFormat(Protocol):
    """An interface to the format of a model's matrices.

    A frozen dataclass, whose fields are in the fingerprint.
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The name of the format, as in `quant_method` of config.json."""
        ...

    def linear(self, config: LinearConfig, new: Allocator) -> Linear:
        """Allocate a matrix in this format, uninitialised."""
        ...

    def experts(self, config: ExpertsConfig, new: Allocator) -> Experts:
        """Allocate experts in this format, uninitialised."""
        ...

    def num_bytes(self, config: LinearConfig, dtype: str) -> int:
        """Count the bytes of a matrix in a model of this dtype, for plans, without torch.

        Raises UnsupportedModel if the matrix is not served in this format.
        """
        ...

    def check_shard(self, config: LinearConfig) -> None:
        """Raise UnsupportedModel if a rank's part of a matrix splits a unit of the format."""
        ...


def walk(part: object, kind: type[M]) -> Iterator[M]:
    """Yield every object of type `kind` in `part`, in the order of the fields."""
    if isinstance(part, kind):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from walk(one, kind)
    elif is_dataclass(part):
        for one in fields(part):
            yield from walk(getattr(part, one.name), kind)
