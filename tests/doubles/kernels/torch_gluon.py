"""The part of Gluon's language that kernels for Hopper use, in PyTorch.

Triton's interpreter does not know Gluon. Here one program runs after the other, and within a
program one group of warps after the other: the copier first, so shared memory needs a stage for
every tile. Barriers do nothing, layouts are ignored, and a product is computed when it is started.
So tests check which tiles are read, masked and multiplied, but not whether groups of warps wait for
each other.

The double supports pointers, boxes of TMA, and shared memory that is swizzled by 128 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import JITFunction

_IN_BOX = 64  # columns of 16 bits in a box, which is the period of the swizzle in shared memory


class Pointer:
    """Pointers to numbers of a tensor: a flat view of its memory, and offsets."""

    def __init__(self, numbers: Tensor, offsets: Tensor | int = 0) -> None:
        self.numbers = numbers
        self.offsets = torch.as_tensor(offsets)
        self.dtype = SimpleNamespace(element_ty=numbers.dtype)

    def __add__(self, more: Tensor | int) -> Pointer:
        return Pointer(self.numbers, self.offsets + more)


def pointer(tensor: Tensor) -> Pointer:
    """Point to the first number of a tensor. Offsets may also reach memory between its numbers."""
    size = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    return Pointer(tensor.as_strided((size,), (1,)))


class Shared:
    """Shared memory for several stages of rows. `index` returns one stage."""

    def __init__(self, parts: Tensor) -> None:
        self._parts = parts  # (stages, boxes across, rows, columns of a box)
        self.dtype = parts.dtype

    def index(self, stage: int) -> Shared:
        """Return one stage."""
        return Shared(self._parts[int(stage)][None])

    def _reinterpret(self, _: object, shape: Sequence[int], __: object) -> Shared:
        return Shared(self._parts.view(shape[0], 1, *shape[1:]))

    def load(self, _: object = None) -> Tensor:
        """Return the rows (rows, columns)."""
        return self._parts[0].transpose(0, 1).flatten(1).clone()

    def store(self, rows: Tensor) -> None:
        """Write numbers to the shared memory."""
        across, height, width = self._parts.shape[1:]
        self._parts[0].copy_(rows.view(height, across, width).transpose(0, 1))

    def permute(self, _: object) -> Tensor:
        """Return the transposed rows."""
        return self.load().T


class Line:
    """Shared memory for stages of a line of numbers, or for barriers."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers  # (stages, numbers)

    def index(self, stage: int) -> Line:
        """Return one stage."""
        return Line(self._numbers[int(stage)])

    def load(self, _: object) -> Tensor:
        """Return the stage's numbers."""
        return self._numbers.clone()

    def store(self, numbers: Tensor) -> None:
        """Write numbers to the stage."""
        self._numbers.copy_(numbers)


def _allocated(dtype: torch.dtype, shape: Sequence[int], _: object) -> Shared | Line:
    unwritten = torch.nan if dtype.is_floating_point else 0x55
    if len(shape) == 2:
        return Line(torch.full(tuple(shape), unwritten, dtype=dtype))
    *outer, rows, columns = shape
    width = min(columns, _IN_BOX)
    return Shared(torch.full((*outer, columns // width, rows, width), unwritten, dtype=dtype))


def _load(at: Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
    if mask is None:
        return at.numbers[at.offsets]
    found = at.numbers[torch.where(mask, at.offsets, 0)]
    return torch.where(mask, found, other)


def _store(at: Pointer, values: Tensor, mask: Tensor) -> None:
    mask = mask.expand_as(values)
    at.numbers[at.offsets.expand_as(values)[mask]] = values[mask]


def _copied(boxes: Any, where: Sequence[Any], _: object, goal: Shared) -> None:
    (row, column), (rows, columns) = (int(at) for at in where), boxes.block_shape
    matrix = boxes.base.as_strided(boxes.shape, boxes.strides)
    goal.store(matrix[row : row + rows, column : column + columns])


def _copied_by_threads(goal: Shared | Line, source: Pointer) -> None:
    goal.store(_load(source))


def _product(
    left: Shared | Tensor, right: Shared | Tensor, acc: Tensor, *, use_acc: bool = True, **_: Any
) -> Tensor:
    a, b = (one.load() if isinstance(one, Shared) else one for one in (left, right))
    return a.float() @ b.float() + (acc if use_acc else 0)


def _waited(_: int, deps: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return deps[0] if len(deps) == 1 else tuple(deps)


def _specialized(groups: Sequence[tuple[Callable[..., None], Sequence[Any]]], *_: object) -> None:
    # reversed, because the copier is the last group and must run first
    for run, arguments in reversed(groups):
        run(*arguments)


def _nothing(*_: object, **__: object) -> None:
    pass


def _both(how: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda a, b: how(torch.as_tensor(a), torch.as_tensor(b))


LANGUAGE = SimpleNamespace(
    load=_load,
    store=_store,
    arange=lambda first, end, _=None: torch.arange(first, end),
    full=lambda shape, value, dtype, _=None: torch.full(shape, value, dtype=dtype),
    zeros=lambda shape, dtype, _=None: torch.zeros(shape, dtype=dtype),
    where=torch.where,
    max=lambda x, axis: x.amax(axis),
    sum=lambda x, axis: x.sum(axis),
    exp2=torch.exp2,
    log2=torch.log2,
    maximum=_both(torch.maximum),
    minimum=_both(torch.minimum),
    convert_layout=lambda x, _: x,
    static_range=range,
    allocate_shared_memory=_allocated,
    warp_specialize=_specialized,
    NVMMASharedLayout=_nothing,
    NVMMADistributedLayout=_nothing,
    DotOperandLayout=_nothing,
    BlockedLayout=_nothing,
    SliceLayout=_nothing,
    SwizzledSharedLayout=_nothing,
    float32=torch.float32,
    int16=torch.int16,
    int32=torch.int32,
    int64=torch.int64,
)
NAMES: dict[str, Any] = {
    "gl": LANGUAGE,
    "mbarrier": SimpleNamespace(
        init=_nothing, wait=_nothing, arrive=_nothing, expect=_nothing, MBarrierLayout=_nothing
    ),
    "async_copy": SimpleNamespace(
        async_copy_global_to_shared=_copied_by_threads, commit_group=_nothing, wait_group=_nothing
    ),
    "tma": SimpleNamespace(async_copy_global_to_shared=_copied),
    "warpgroup_mma": _product,
    "warpgroup_mma_wait": _waited,
    "fence_async_shared": _nothing,
}


def _as_argument(given: Any) -> Any:
    if isinstance(given, Tensor):
        return pointer(given)
    return torch.tensor(given) if isinstance(given, int | float) else given


class Launched:
    """The replacement of a kernel: a launch runs its programs."""

    def __init__(self, kernel: JITFunction[Any]) -> None:
        self._run, self._arguments = kernel.fn, kernel.arg_names

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            kept = {name: named[name] for name in named if name in self._arguments}
            wrapped = [_as_argument(one) for one in given]
            sizes = (*grid, 1, 1)
            LANGUAGE.num_programs = lambda axis: torch.tensor(sizes[axis])
            for program in itertools.product(*map(range, grid)):
                places = (*program, 0, 0)
                LANGUAGE.program_id = lambda axis, at=places: torch.tensor(at[axis])
                self._run(*wrapped, **kept)

        return launch


@contextmanager
def gluon_in_torch(
    *modules: ModuleType, kernel: str, **instead: Callable[..., object]
) -> Iterator[None]:
    """Run device code and launches of these modules on a CPU while the context is open.

    `kernel` is the name of the launched function. `instead` are replacements, by name, of Triton's
    functions that the modules use.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, there in list(vars(module).items()):
                if name in NAMES or name in instead:
                    patch.setattr(module, name, instead.get(name, NAMES.get(name)))
                elif isinstance(there, GluonJITFunction):
                    patch.setattr(module, name, Launched(there) if name == kernel else there.fn)
        yield
