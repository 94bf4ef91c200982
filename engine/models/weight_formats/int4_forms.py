"""The forms of 4-bit integers in model checkpoints, and the conversion to the form in memory.

    awq     qweight (K, N / 8)    qzeros (K / G, N / 8)    scales (K / G, N)
            eight integers of a row in a word, from the lowest bits: 0 2 4 6 1 3 5 7
    gptq    qweight (K / 8, N)    qzeros (K / G, N / 8)    scales (K / G, N)    g_idx (K)
            in order; zero points minus 1, except in gptq_v2; g_idx is the group of each column
    pack-quantized    weight_packed (N, K / 8)    weight_scale (N, K / G)    weight_shape (2)
                      weight_zero_point (N / 8, K / G), if not symmetric; in order

All words are int32. Views have the same order of dimensions as the stored tensors, so shards divide
both in the same dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.models.errors import CheckpointError
from engine.models.modules import CheckpointTensor

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["awq", "gptq", "gptq_v2", "pack-quantized"]
Convert = Callable[["Tensor"], "Tensor"]
IN_WORD = 8
IN_ORDER = tuple(range(IN_WORD))
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
SYMMETRIC_ZERO = 8


@dataclass(frozen=True, slots=True)
class Int4Views:
    """The views of one matrix of the model checkpoint: N rows of the joined matrix.

    `values` (N, K / 4) int16, `scales` (K / G, N), `zeros` (K / G, N) uint8 or None. If `of_rows`,
    shards divide the rows (or those of each of `sections`), else the columns.
    """

    name: str
    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int
    of_rows: bool
    sections: tuple[int, ...]

    def integers(
        self, suffix: str, rows_dim: int, order: Sequence[int], along: int
    ) -> CheckpointTensor:
        """Return the tensor of integers. In the file, they are packed along the dimension `along`.

        `order` is the order of integers in a word. The tensor is two-dimensional, and its dimension
        `rows_dim` counts the matrix's rows.
        """
        turned = rows_dim == 1
        rows, columns = self.values.shape[0], 4 * self.values.shape[1]
        stored = in_words((columns, rows) if turned else (rows, columns), along)
        view = self.values.T if turned else self.values
        convert = _words_of(order, along=along, turned=turned)
        return self._tensor(suffix, view, rows_dim, convert, stored)

    def steps(self, suffix: str, rows_dim: int) -> CheckpointTensor:
        """Return the tensor of scales. For `rows_dim`, see `integers`."""
        view = self.scales if rows_dim else self.scales.T
        stored = tuple(view.shape)
        return self._tensor(suffix, view, rows_dim, None, stored, is_scale=True)

    def points(self, suffix: str, rows_dim: int, convert: Convert) -> CheckpointTensor:
        """Return the tensor of zero points. Symmetric weights have none."""
        assert self.zeros is not None
        view = self.zeros if rows_dim else self.zeros.T
        stored = in_words(tuple(view.shape), rows_dim)
        return self._tensor(suffix, view, rows_dim, convert, stored)

    def _tensor(
        self,
        suffix: str,
        view: Tensor,
        rows_dim: int,
        convert: Convert | None,
        stored: tuple[int, ...],
        *,
        is_scale: bool = False,
    ) -> CheckpointTensor:
        name, shard_dim = f"{self.name}.{suffix}", rows_dim if self.of_rows else 1 - rows_dim
        return CheckpointTensor(
            name, view, shard_dim, convert, stored, is_scale=is_scale, sections=self.sections
        )

    def checked(
        self, suffix: str, is_served: Callable[[Tensor], bool], what: str
    ) -> CheckpointTensor:
        """Return a tensor that is only checked. Loading raises CheckpointError if it fails."""
        nothing = self.values.new_empty(0)

        def convert(value: Tensor) -> Tensor:
            if not is_served(value):
                raise CheckpointError(f"served is {what}")
            return nothing

        name = f"{self.name}.{suffix}"
        return CheckpointTensor(name, nothing, None, convert, required=False)


def checkpoint_tensors(
    form: Form, views: Int4Views, *, has_bias: bool
) -> Iterator[CheckpointTensor]:
    """Yield the tensors of one matrix, except its bias."""
    match form:
        case "awq":
            yield from _awq(views)
        case "gptq" | "gptq_v2":
            yield from _gptq(views, 1 if form == "gptq" else 0, has_bias=has_bias)
        case "pack-quantized":
            yield from _pack_quantized(views)


def _awq(views: Int4Views) -> Iterator[CheckpointTensor]:
    yield views.integers("qweight", 1, AWQ_ORDER, along=1)
    yield views.points("qzeros", 1, lambda value: bytes_of(value, AWQ_ORDER, 1))
    yield views.steps("scales", 1)


def _gptq(views: Int4Views, less: int, *, has_bias: bool) -> Iterator[CheckpointTensor]:
    def zeros_of(value: Tensor) -> Tensor:
        return bytes_of(value, IN_ORDER, 1) + less

    def is_in_order(groups: Tensor) -> bool:
        import torch

        columns = torch.arange(groups.numel(), device=groups.device)
        return torch.equal(groups.long(), columns // views.group)

    yield views.integers("qweight", 1, IN_ORDER, along=0)
    yield views.steps("scales", 1)
    if views.zeros is None:
        eight = f"zero points of {SYMMETRIC_ZERO}, as sym says"
        yield views.checked(
            "qzeros", lambda value: bool((zeros_of(value) == SYMMETRIC_ZERO).all()), eight
        )
    else:
        yield views.points("qzeros", 1, zeros_of)
    yield views.checked("g_idx", is_in_order, "groups of columns in order")
    if not has_bias:  # some files have a bias for every matrix, of zeros
        yield views.checked("bias", lambda bias: not bool(bias.any()), "zeros")


def _pack_quantized(views: Int4Views) -> Iterator[CheckpointTensor]:
    yield views.integers("weight_packed", 0, IN_ORDER, along=1)
    yield views.steps("weight_scale", 0)
    if views.zeros is not None:
        yield views.points("weight_zero_point", 0, lambda value: bytes_of(value, IN_ORDER, 0))
    yield views.checked("weight_shape", lambda _: True, "any")


def _words_of(order: Sequence[int], *, along: int, turned: bool) -> Convert:
    """Return a function that packs integers for the kernels. If `turned`, its input is (K, N)."""

    def convert(value: Tensor) -> Tensor:
        from kernels.linear.int4_matrix import packed  # imported here, because it imports torch

        integers = bytes_of(value, order, along)
        return packed(integers.T.contiguous()).T if turned else packed(integers)

    return convert


def in_words(shape: tuple[int, ...], along: int) -> tuple[int, ...]:
    """Return the shape of a tensor whose integers are packed, eight per word, along a dimension."""
    return tuple(size // IN_WORD if dim == along else size for dim, size in enumerate(shape))


def bytes_of(value: Tensor, order: Sequence[int], along: int) -> Tensor:
    """Unpack `value`, int32 words of eight integers along a dimension, to uint8.

    `order` has the place of each integer in the word. Raises CheckpointError for other dtypes.
    """
    if value.dim() != 2 or "int32" not in str(value.dtype):
        raise CheckpointError(f"packed integers are {value.dtype}: served are words of int32")
    rows, columns = value.shape
    if along == 0:
        wide = value.new_empty(rows, IN_WORD, columns).byte()
        parts = [wide[:, index] for index in range(IN_WORD)]
    else:
        wide = value.new_empty(rows, columns, IN_WORD).byte()
        parts = [wide[:, :, index] for index in range(IN_WORD)]
    for part, place in zip(parts, order, strict=True):
        part.copy_((value >> 4 * place) & 15)
    return wide.view((rows * IN_WORD, columns) if along == 0 else (rows, columns * IN_WORD))
