"""Attention batches with a known result, computed before keys and values are put into blocks.

A case has each row's keys and values as contiguous tensors, and puts the same numbers into a pool.
All other memory there is poison: unwritten slots are NaN, and table entries after a row's context
are no block ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.batch_layout import BatchLayout
from kernels.attention.variant import AttentionVariant
from tests.doubles.engine.device.shared_prefix import with_units
from tests.kernels import naive

NO_BLOCK_IDS = (-1, 2**31 - 1, -(2**31), 10**9)
LAYERS, LAYER = 2, 1


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that a model's config fixes."""

    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.q_heads}over{self.kv_heads}-d{self.head_dim}-block{self.block_size}-{name}"


@dataclass(frozen=True, slots=True)
class Case:
    """A batch in the kernels' form, and each row's q, keys and values in order."""

    q: Tensor
    kv: Tensor
    layout: BatchLayout
    scale: float
    rows: tuple[tuple[Tensor, Tensor, Tensor], ...]
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def how(self) -> tuple[AttentionVariant, Tensor | None]:
        """Return the variant and the sinks in the form of the ops' arguments."""
        return AttentionVariant(self.scale, self.window, self.softcap), self.sinks

    def truth(self) -> Tensor:
        """Return the result of attention, (T, Hq, D) float64."""
        return torch.cat([naive.attention(*row, *self.how) for row in self.rows])


def make_case(
    geometry: Geometry, rows: list[tuple[int, int]], *, decodes: int | None = None, seed: int = 0
) -> Case:
    """Make a case from rows of (new tokens, context). Leading one-token rows count as decodes."""
    generator = torch.Generator(geometry.device).manual_seed(seed)
    plain = tuple(_plain_row(geometry, new, context, generator) for new, context in rows)
    tables = _random_tables(geometry, [context for _, context in rows], generator)
    kv = _poisoned_layer(geometry, 1 + int(tables.max()), spare=2)
    for table, (_, keys, values) in zip(tables, plain, strict=True):
        _write(kv, table, keys, values)
    contexts = [context for _, context in rows]
    for row, context in enumerate(contexts):
        behind = tables[row, -(-context // geometry.block_size) :]
        garbage = torch.tensor(NO_BLOCK_IDS, dtype=torch.int32, device=geometry.device)
        behind.copy_(garbage.repeat(behind.numel())[: behind.numel()])
    leading = next((i for i, (new, _) in enumerate(rows) if new != 1), len(rows))
    layout = make_layout(rows, tables, geometry.block_size, leading if decodes is None else decodes)
    layout = with_units(layout, kv, geometry.q_heads)
    scale = 1 / math.sqrt(geometry.head_dim)
    return Case(torch.cat([q for q, _, _ in plain]), kv, layout, scale, plain)


def make_layout(
    rows: list[tuple[int, int]], tables: Tensor, block_size: int, decodes: int
) -> BatchLayout:
    """Make the layout of rows (new tokens, context) over block tables (R, max blocks) int32."""
    device = tables.device
    news = torch.tensor([0] + [new for new, _ in rows], device=device)
    positions = [torch.arange(c - n, c, device=device) for n, c in rows]
    slots = [
        tables[row, p // block_size].long() * block_size + p % block_size
        for row, p in enumerate(positions)
    ]
    return BatchLayout(
        query_starts=news.cumsum(0).int(),
        context_lens=torch.tensor([c for _, c in rows], dtype=torch.int32, device=device),
        block_tables=tables,
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        num_decodes=decodes,
        max_context_len=max(c for _, c in rows),
    )


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill newly allocated tensors with NaN while the context is open, so that unwritten elements
    show.
    """
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def relative_error(got: Tensor, truth: Tensor) -> float:
    """Return the Frobenius norm of the difference, relative to that of the truth; NaN stays NaN."""
    return float((got.double() - truth).norm() / truth.norm())


def _plain_row(
    geometry: Geometry, new: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    def draw(tokens: int, heads: int) -> Tensor:
        shape = (tokens, heads, geometry.head_dim)
        numbers = torch.randn(shape, generator=generator, device=geometry.device)
        return numbers.to(geometry.dtype)

    keys, values = draw(context, geometry.kv_heads), draw(context, geometry.kv_heads)
    return draw(new, geometry.q_heads), keys, values


def _random_tables(geometry: Geometry, contexts: list[int], generator: torch.Generator) -> Tensor:
    """Draw distinct block ids in random order, two entries more than the longest row needs."""
    needed = [-(-context // geometry.block_size) for context in contexts]
    ids = torch.randperm(sum(needed) + 3, generator=generator, device=geometry.device).int()
    tables = torch.zeros((len(contexts), max(needed) + 2), dtype=torch.int32, device=ids.device)
    for row, blocks in enumerate(torch.split(ids[: sum(needed)], needed)):
        tables[row, : len(blocks)] = blocks
    return tables


def _poisoned_layer(geometry: Geometry, blocks: int, spare: int) -> Tensor:
    g = geometry
    shape = (blocks + spare, LAYERS, 2, g.kv_heads, g.block_size, g.head_dim)
    pool = torch.full(shape, torch.nan, dtype=g.dtype, device=g.device)
    return pool[:, LAYER]


def _write(kv: Tensor, table: Tensor, keys: Tensor, values: Tensor) -> None:
    block_size = kv.shape[3]
    position = torch.arange(keys.shape[0], device=kv.device)
    blocks, offsets = table[position // block_size].long(), position % block_size
    kv[blocks, 0, :, offsets] = keys
    kv[blocks, 1, :, offsets] = values
