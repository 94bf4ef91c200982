"""The device code of a Hopper GEMM with few rows of x (`hopper_linear`).

A program multiplies one or several strips (blocks of weight rows) by some rows of x, over a share
of K. Each of two groups of four warps multiplies half of a strip. One more warp copies tiles to
shared memory before these groups need them. It copies tiles of the next strip while the groups
write the previous strip's result.

SCALES 0 means no scales. SCALES 1 means scales of rows of x and of rows of the weight. The final
sum is multiplied by them. SCALES 2 means scales of 128 x 128 blocks of the weight and of 128
columns of a row of x. Each tile's sum is multiplied by them. The matrix units add fp8 products with
few bits, so the sums of tiles are added in float32 registers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma


@gluon.jit
def _wait_for_previous() -> None:
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _box(
    copy: gl.tensor,
    tiles: gl.tensor,
    first_column: gl.tensor,
    STRIP: gl.constexpr,
    TILE: gl.constexpr,
    SEVERAL: gl.constexpr,
) -> gl.tensor:
    """Return the first row and column of a program's tile number `copy`."""
    if SEVERAL:
        strip = gl.program_id(0) + copy // tiles * gl.num_programs(0)
        return strip * STRIP, first_column + copy % tiles * TILE
    return gl.program_id(0) * STRIP, first_column + copy * TILE


@gluon.jit
def _producer(
    weight_boxes: gl.tensor,
    x_boxes: gl.tensor,
    weights: gl.tensor,
    inputs: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    strips: gl.tensor,
    first_of_x: gl.tensor,
    first_column: gl.tensor,
    tiles: gl.tensor,
    STRIP: gl.constexpr,
    ROWS: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    SEVERAL: gl.constexpr,
) -> None:
    """Copy tiles when stages become free. The first weight tiles are copied before x is written."""
    BYTES: gl.constexpr = (STRIP + ROWS) * TILE * weight_boxes.dtype.primitive_bitwidth // 8
    copies = strips * tiles
    ahead = gl.minimum(copies, STAGES)
    for i in range(ahead):
        mbarrier.expect(full.index(i), BYTES)
        row, column = _box(i, tiles, first_column, STRIP, TILE, SEVERAL)
        tma.async_copy_global_to_shared(
            weight_boxes, [row, column], full.index(i), weights.index(i)
        )
    _wait_for_previous()
    for i in range(ahead):
        row, column = _box(i, tiles, first_column, STRIP, TILE, SEVERAL)
        tma.async_copy_global_to_shared(
            x_boxes, [first_of_x, column], full.index(i), inputs.index(i)
        )
    for i in range(ahead, copies):
        stage = i % STAGES
        row, column = _box(i, tiles, first_column, STRIP, TILE, SEVERAL)
        mbarrier.wait(free.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), BYTES)
        tma.async_copy_global_to_shared(
            weight_boxes, [row, column], full.index(stage), weights.index(stage)
        )
        tma.async_copy_global_to_shared(
            x_boxes, [first_of_x, column], full.index(stage), inputs.index(stage)
        )


@gluon.jit
def _multiply_strip(
    which: gl.constexpr,
    halves: gl.tensor,
    inputs: gl.tensor,
    full: gl.tensor,
    free: gl.tensor,
    out: gl.tensor,
    rows: gl.tensor,
    features: gl.tensor,
    first_row: gl.tensor,
    first_of_x: gl.tensor,
    first_tile: gl.tensor,
    tiles: gl.tensor,
    copied: gl.tensor,
    all_tiles: gl.tensor,
    x_scales: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    SCALES: gl.constexpr,
    HAS_BIAS: gl.constexpr,
) -> None:
    """Multiply the M rows of group `which` of a strip. Write the result to `out` (rows, N).

    `copied` tiles were copied before the tiles of this strip.
    """
    K: gl.constexpr = 256 // halves.dtype.primitive_bitwidth
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], instr_shape=[16, ROWS, K])
    EARLY: gl.constexpr = SCALES == 1 and ROWS <= 32  # enough registers are free for scales
    acc = gl.zeros([M, ROWS], gl.float32, ACC)
    feature = first_row + which * M + gl.arange(0, M, gl.SliceLayout(1, ACC))
    row = first_of_x + gl.arange(0, ROWS, gl.SliceLayout(0, ACC))
    if EARLY:  # no kernel writes the weight's scales
        of_features = gl.load(scales + feature, mask=feature < features, other=0.0)
    if SCALES:
        _wait_for_previous()
    if EARLY:
        of_rows = gl.load(x_scales + row, mask=row < rows, other=0.0)
    for i in range(tiles):
        stage = (copied + i) % STAGES
        if SCALES == 2:  # loaded before the tile arrives
            tile = first_tile + i
            of_rows = gl.load(x_scales + row * all_tiles + tile, mask=row < rows, other=0.0)
            of_block = gl.load(scales + first_row // 128 * all_tiles + tile)
        mbarrier.wait(full.index(stage), ((copied + i) // STAGES) & 1)
        x = inputs.index(stage).permute((1, 0))
        half = halves.index(2 * stage + which)
        if SCALES == 0:
            acc = warpgroup_mma(half, x, acc)
        else:
            part = warpgroup_mma(half, x, gl.zeros([M, ROWS], gl.float32, ACC), use_acc=False)
            if SCALES == 2:
                part *= (of_rows * of_block)[None, :]
            acc += part
        mbarrier.arrive(free.index(stage), count=1)
    if SCALES == 1 and not EARLY:
        of_rows = gl.load(x_scales + row, mask=row < rows, other=0.0)
        of_features = gl.load(scales + feature, mask=feature < features, other=0.0)
    if SCALES == 1:
        acc *= of_rows[None, :] * of_features[:, None]
    if HAS_BIAS:  # only the first share adds the bias
        shift = gl.load(bias + feature, mask=(feature < features) & (first_tile == 0), other=0.0)
        acc += shift.to(gl.float32)[:, None]
    real = (feature < features)[:, None] & (row < rows)[None, :]
    goal = out + row[None, :] * features + feature[:, None]
    gl.store(goal, acc.to(out.dtype.element_ty), mask=real)


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
    strips: gl.tensor,
    first_of_x: gl.tensor,
    first_tile: gl.tensor,
    tiles: gl.tensor,
    all_tiles: gl.tensor,
    x_scales: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    M: gl.constexpr,
    ROWS: gl.constexpr,
    STAGES: gl.constexpr,
    SCALES: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SEVERAL: gl.constexpr,
) -> None:
    first, step = gl.program_id(0) * 2 * M, gl.num_programs(0) * 2 * M
    if SEVERAL:
        for strip in range(strips):
            _multiply_strip(
                which, halves, inputs, full, free, out, rows, features, first + strip * step,
                first_of_x, first_tile, tiles, strip * tiles, all_tiles, x_scales, scales, bias,
                M, ROWS, STAGES, SCALES, HAS_BIAS,
            )  # fmt: skip
    else:
        _multiply_strip(
            which, halves, inputs, full, free, out, rows, features, first,
            first_of_x, first_tile, tiles, 0, all_tiles, x_scales, scales, bias,
            M, ROWS, STAGES, SCALES, HAS_BIAS,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["rows"])
def gemm_kernel(
    weight_boxes: gl.tensor,
    x_boxes: gl.tensor,
    out: gl.tensor,
    x_scales: gl.tensor,
    scales: gl.tensor,
    bias: gl.tensor,
    rows: gl.tensor,
    features: gl.tensor,
    all_tiles: gl.tensor,
    STRIP: gl.constexpr,
    ROWS: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    SCALES: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    REGISTERS: gl.constexpr,
    SEVERAL: gl.constexpr,
) -> None:
    """Run the program of (strips, share of K, rows of x). `hopper_linear` checks the shapes."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0",
        "=r", [], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    share, shares = gl.program_id(1), gl.num_programs(1)
    begin = share * all_tiles // shares
    tiles = (share + 1) * all_tiles // shares - begin
    first_of_x = gl.program_id(2) * ROWS
    strips = 1
    if SEVERAL:
        all_strips, step = (features + STRIP - 1) // STRIP, gl.num_programs(0)
        strips = (all_strips - gl.program_id(0) + step - 1) // step
    goal = out + share * rows * features

    M: gl.constexpr = STRIP // 2
    dtype: gl.constexpr = weight_boxes.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, dtype.primitive_bitwidth, rank=2)
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
                0, halves, inputs, full, free, goal, rows, features, strips, first_of_x, begin,
                tiles, all_tiles, x_scales, scales, bias, M, ROWS, STAGES, SCALES, HAS_BIAS,
                SEVERAL,
            )),
            (_consumer, (
                1, halves, inputs, full, free, goal, rows, features, strips, first_of_x, begin,
                tiles, all_tiles, x_scales, scales, bias, M, ROWS, STAGES, SCALES, HAS_BIAS,
                SEVERAL,
            )),
            (_producer, (
                weight_boxes, x_boxes, weights, inputs, full, free, strips, first_of_x,
                begin * TILE, tiles,
                STRIP, ROWS, TILE, STAGES, SEVERAL,
            )),
        ],
        [4, 1],
        [REGISTERS, 40],
    )  # fmt: skip
