"""The modules, the parts of a layer that have tensors: matrices, norms and others.

Layers and modules are frozen dataclasses. `walk` finds the modules in a layer's fields. At import,
torch is needed only for types, so that configs can be read without torch.

Elsewhere: the modules themselves (`layers`, `weight_formats`).
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
    """A tensor of a model checkpoint: its name, and `view`, the part of a parameter that it fills.

    `shard_dim` is the dimension that shards divide, or None if every shard has the full tensor.
    `sections` are the relative sizes of sections along `shard_dim`, each of which shards divide.
    `convert` converts the checkpoint's tensor to that of the parameter. It raises CheckpointError,
    without the tensor's name, for values that are not served. `stored_shape` is the shape that
    `convert` expects. If not `required`, the tensor may be absent, and `view` then has no elements.
    If `is_scale`, the tensor has scales of weights, which are checked.
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

    Matrices of a model checkpoint that multiply the same input are joined by rows. Shards divide
    the rows. Or they divide the columns, and their products are summed. A matrix of the checkpoint
    may have sections of rows, each of which shards divide.
    """

    rows: tuple[tuple[str, int], ...]  # (name, number of rows) of each matrix in the checkpoint
    size_in: int
    bias: bool
    shards: Literal["rows", "columns"]
    in_parts: bool = True  # True: the product may be in split-K parts (`kernels.linear.split_k`)
    of_expert: bool = False
    plain: bool = False  # True: not quantised in any weight format
    # Numbers of rows of each matrix's sections; empty: no sections.
    sections: tuple[tuple[int, ...], ...] = ()

    @property
    def in_sections(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """The matrices in the checkpoint, each as (name, rows, rows of each section)."""
        sections = self.sections or tuple((rows,) for _, rows in self.rows)
        for (name, rows), own in zip(self.rows, sections, strict=True):
            yield name, rows, own

    @property
    def size_out(self) -> int:
        """The total number of rows of all matrices."""
        return sum(rows for _, rows in self.rows)

    def named(
        self, suffix: str, tensor: Tensor, shard_dim: int | None
    ) -> Iterator[CheckpointTensor]:
        """Split `tensor`, whose first dimension has the rows of all matrices, into matrices."""
        views = tensor.split([rows for _, rows in self.rows])  # type: ignore[no-untyped-call]
        for (name, _, sections), view in zip(self.in_sections, views, strict=True):
            of_rows = sections if shard_dim == 0 else ()
            yield CheckpointTensor(f"{name}.{suffix}", view, shard_dim, sections=of_rows)


def side_by_side(
    prefix: str, sizes: dict[str, int], hidden: int, *, bias: bool, in_parts: bool = True
) -> LinearConfig:
    """Join matrices that multiply the same input. `sizes` has the rows of each by name."""
    rows = tuple((prefix + name, size) for name, size in sizes.items())
    return LinearConfig(rows, hidden, bias, "rows", in_parts)


class Module(ABC):
    """The base class of modules: tensors of a layer that belong together."""

    __slots__ = ()

    @abstractmethod
    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield views that cover all tensors of the module, each element once."""

    @abstractmethod
    def fill(self, generator: torch.Generator) -> None:
        """Fill the tensors with dummy values for which activations keep their magnitude."""


class Linear(Module):
    """A matrix in any weight format."""

    __slots__ = ()
    config: LinearConfig

    @property
    def takes_fp8(self) -> Scaling | None:
        """The fp8 quantisation that the previous kernel may apply to the input, or None."""
        return None

    @abstractmethod
    def product(self, ops: Ops, x: Tensor | Fp8Rows) -> Tensor:
        """Multiply x (T, size_in) -> (T, size_out). The result is in parts if `config` allows it.

        `x` may be unquantised. It may be in fp8 only if `takes_fp8` is not None.
        """

    @abstractmethod
    def dense(self, dtype: torch.dtype) -> Tensor:
        """Dequantise the matrix. Return (size_out, size_in) in the model's `dtype`."""


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """A matrix of one expert in the model checkpoint, and the part of a parameter that it fills.

    The parameter is `gate_up` or `down`. Shards divide the rows of `gate_up` and the columns of
    `down`.
    """

    name: str
    is_down: bool
    index: int = 0
    count: int = 1

    def of(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Return this part of `tensor` as a view. Dimension `dim` counts the rows."""
        return tensor.chunk(self.count, dim)[self.index]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The config of the matrices of a layer's experts, without tensors.

    The name of an expert's matrix consists of `prefix`, the expert's number and one of `names`:
    first the inner matrices, then the projection back. If `packed`, the model checkpoint has one
    tensor for all experts, with inputs before outputs. The outputs for gate and up then alternate
    (gpt-oss), or are two `halves` (Llama 4).
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
        """Return the names of an expert's matrices. The last is the projection back."""
        return tuple(f"{self.prefix}{expert}.{name}" for name in self.names)

    def parts(self, expert: int) -> Iterator[ExpertPart]:
        """Yield an expert's matrices, each with its part of `gate_up` or `down`."""
        *inner, down = self.matrices(expert)
        for index, name in enumerate(inner):
            yield ExpertPart(name, False, index, len(inner))
        yield ExpertPart(down, True)


@dataclass(frozen=True, slots=True)
class Experts(Module):
    """The experts of a layer in any weight format: `gate_up` (E, 2 I, H), `down` (E, H, I).

    Without a gate, `gate_up` is (E, I, H). `room` has the adapters' matrices for these experts.
    """

    config: ExpertsConfig
    gate_up: AnyMatrix
    down: AnyMatrix
    room: ExpertSlots | None = field(default=None, kw_only=True)

    def product(self, ops: Ops, x: Tensor, routed: Routed) -> Tensor:
        """Compute x (T, H) -> (T, H), complete or in parts."""
        own = routed, self.gate_up, self.down, self.config.gate
        if self.room is None or ops.adapters is None:
            return ops.mixture(x, *own)
        return ops.adapted_mixture(x, *own, self.room, ops.adapters)


class Memory(Protocol):
    """An interface to memory from which tensors are taken, instead of torch's allocator."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate the next tensor, uninitialised."""
        ...


@dataclass(frozen=True, slots=True)
class Allocator:
    """An allocator of uninitialised tensors for a model's modules.

    If several ranks compute the model (`group`), the given configs have this rank's sizes.
    """

    weight_format: WeightFormat
    dtype: torch.dtype
    device: torch.device
    group: RankGroup | None = None
    memory: Memory | None = None  # None: torch's allocator, on `device`

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate a tensor, by default of the model's dtype."""
        import torch  # imported here, so that configs can be read without torch

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

    Implementations are frozen dataclasses. Their fields become part of the fingerprint.
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
        """Count the bytes of a matrix in a model of this dtype. Works without torch, for plans.

        Raises UnsupportedModel if the matrix is not served in this format.
        """
        ...

    def check_shard(self, config: LinearConfig) -> None:
        """Raise UnsupportedModel if dividing a matrix among ranks splits a unit of the format."""
        ...


def walk(part: object, kind: type[M]) -> Iterator[M]:
    """Yield every object of type `kind` in the fields of `part`, in order, recursively."""
    if isinstance(part, kind):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from walk(one, kind)
    elif is_dataclass(part):
        for one in fields(part):
            yield from walk(getattr(part, one.name), kind)
