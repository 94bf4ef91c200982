"""A GEMM of few rows, for Hopper, that begins to read its weight before its input is there.

y = x @ weight.T of up to 8 rows takes as long as reading the weight, and the memory is idle while a
kernel waits for the one before it. Here, with TMA copies and PDL (`dependent_launch`), reading the
weight does not wait:

    before   | norm, attention ... |
    copier   | weight tiles until shared memory is full ... | tiles of x | weight and x ...
    halves                         (wait)                   | multiply full tiles, free them ...

A program has a strip of 128 rows of the weight and a share of K (split-K); with several shares the
product is left as split-K partials (`split_k`). Two groups of four warps multiply 64 rows each, one
warp copies.

For 16-bit numbers; runs on compute capability 9.0 only, and not in the interpreter. Knows: one
GEMM. Does not know: when it is faster than the alternatives (`linear`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch.capability import HOPPER, capability

MAX_ROWS = 8  # N of the smallest WGMMA instruction
TILE = 64  # columns: the 128 bytes that shared memory is swizzled by
_STRIP = 128  # rows of the weight in a program: M = 64 of WGMMA, twice
_PROGRAMS = 132  # multiprocessors of an H200; twice as many programs run with half of the memory
_STAGES = 12  # tiles in flight in a program that has all shared memory of a multiprocessor
_MIN_TILES = 8  # of a share of K
_MAX_SHARES = 8
_REGISTERS = 152  # of a thread at launch; the copier keeps 40 of them
_BOXES = gl.NVMMASharedLayout(128, 16, rank=2)  # how copied boxes lie in shared memory


@gluon.jit
def _producer(
    weight_boxes: gl.tensor,
    x_boxes: gl.tensor,
    weights: gl.tensor,
    inputs: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    first_row: gl.tensor,
    first_column: gl.tensor,
    tiles: gl.tensor,
    STRIP: gl.constexpr,
    ROWS: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Copy tile after tile as stages become free; the first weights before x is written."""
    ahead = gl.minimum(tiles, STAGES)
    for i in range(ahead):
        mbarrier.expect(full.index(i), (STRIP + ROWS) * TILE * 2)
        column = first_column + i * TILE
        tma.async_copy_global_to_shared(
            weight_boxes, [first_row, column], full.index(i), weights.index(i)
        )
    # After this wait all kernels launched before have ended, and x is written.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    for i in range(ahead):
        column = first_column + i * TILE
        tma.async_copy_global_to_shared(x_boxes, [0, column], full.index(i), inputs.index(i))
    for i in range(ahead, tiles):
        stage = i % STAGES
        column = first_column + i * TILE
        mbarrier.wait(free.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), (STRIP + ROWS) * TILE * 2)
        tma.async_copy_global_to_shared(
            weight_boxes, [first_row, column], full.index(stage), weights.index(stage)
        )
        tma.async_copy_global_to_shared(
            x_boxes, [0, column], full.index(stage), inputs.index(stage)
        )


@gluon.jit
def _consumer(
    which: gl.constexpr,
    halves: gl.tensor,
    inputs: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    out: gl.tensor,
    rows: gl.tensor,
    features: gl.tensor,
    first_row: gl.tensor,
    tiles: gl.tensor,
    M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Multiply the `which`-th M rows of the strip, and write the result to `out` (rows, N)."""
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, ROWS, 16])
    acc = gl.zeros([M, ROWS], gl.float32, ACC)
    for i in range(tiles):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), (i // STAGES) & 1)
        x = inputs.index(stage).permute((1, 0))
        acc = warpgroup_mma(halves.index(2 * stage + which), x, acc)
        mbarrier.arrive(free.index(stage), count=1)
    feature = first_row + which * M + gl.arange(0, M, gl.SliceLayout(1, ACC))
    row = gl.arange(0, ROWS, gl.SliceLayout(0, ACC))
    real = (feature < features)[:, None] & (row < rows)[None, :]
    goal = out + row[None, :] * features + feature[:, None]
    gl.store(goal, acc.to(out.dtype.element_ty), mask=real)


@gluon.jit(do_not_specialize=["rows"])
def _kernel(
    weight_boxes: gl.tensor,
    x_boxes: gl.tensor,
    out: gl.tensor,
    rows: gl.tensor,
    features: gl.tensor,
    all_tiles: gl.tensor,
    STRIP: gl.constexpr,
    ROWS: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0",
        "=r", [], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    share, shares = gl.program_id(1), gl.num_programs(1)
    begin = share * all_tiles // shares
    tiles = (share + 1) * all_tiles // shares - begin
    first_row = gl.program_id(0) * STRIP
    goal = out + share * rows * features

    M: gl.constexpr = STRIP // 2
    dtype: gl.constexpr = weight_boxes.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    weights = gl.allocate_shared_memory(dtype, [STAGES, STRIP, TILE], layout)
    inputs = gl.allocate_shared_memory(dtype, [STAGES, ROWS, TILE], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    halves = weights._reinterpret(dtype, [2 * STAGES, M, TILE], layout)
    gl.warp_specialize(
        [
            (_consumer, (
                0, halves, inputs, full, free, goal, rows, features, first_row, tiles,
                M, ROWS, STAGES,
            )),
            (_consumer, (
                1, halves, inputs, full, free, goal, rows, features, first_row, tiles,
                M, ROWS, STAGES,
            )),
            (_producer, (
                weight_boxes, x_boxes, weights, inputs, full, free, first_row, begin * TILE, tiles,
                STRIP, ROWS, TILE, STAGES,
            )),
        ],
        [4, 1],
        [152, 40],
    )  # fmt: skip


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether `gemm` can compute x (T, K) by weight (N, K) with all programs running at once."""
    rows, width = x.shape
    return (
        0 < rows <= MAX_ROWS
        and capability(x.device) == HOPPER
        and x.dtype == weight.dtype
        and x.dtype.itemsize == 2
        and width % TILE == 0
        and x.stride(0) % 8 == 0  # TMA takes strides in multiples of 16 bytes
        and strips_of(weight.shape[0]) <= 2 * _PROGRAMS
    )


def strips_of(features: int) -> int:
    """How many strips a weight of `features` rows has."""
    return -(-features // _STRIP)


def shares_of(features: int, width: int) -> int:
    """Among how many programs K is cut: as many as fill the device, with _MIN_TILES tiles each."""
    most = min(_MAX_SHARES, width // (TILE * _MIN_TILES))
    return max(min(_PROGRAMS // strips_of(features), most), 1)


def gemm(x: Tensor, weight: Tensor) -> Tensor:
    """x (T, K) with contiguous rows, weight (N, K) contiguous -> (T, N), or parts (S, T, N)."""
    (rows, width), features = x.shape, weight.shape[0]
    strips, shares = strips_of(features), shares_of(features, width)
    if shares == 1:
        out = x.new_empty((rows, features))
    else:
        out = x.new_empty((shares, rows, features), dtype=torch.float32)
    weight_boxes = TensorDescriptor(weight, [features, width], [width, 1], [_STRIP, TILE], _BOXES)
    x_boxes = TensorDescriptor(x, [rows, width], [x.stride(0), 1], [MAX_ROWS, TILE], _BOXES)
    _kernel[(strips, shares)](
        weight_boxes,
        x_boxes,
        out,
        rows,
        features,
        width // TILE,
        STRIP=_STRIP,
        ROWS=MAX_ROWS,
        TILE=TILE,
        STAGES=_STAGES if strips * shares <= _PROGRAMS else _STAGES // 2,
        num_warps=4,
        maxnreg=_REGISTERS,
        launch_pdl=True,
    )
    return out
