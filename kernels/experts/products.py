"""The products of experts: each row by the matrix of its expert, tile by tile.

    gated    out[p] = gate(x[token of p] @ [gate | up].T)       x (T, H) -> (T k, I)
    down     out[j, t] = weight * (h[t k + j] @ down.T)         h (T k, I) -> (k, T, H)

p = t k + j is the pair of token t and its j-th expert. The k products of a token are left beside
each other, for a reader that adds them in order (`split_k`, `add_experts`): float32 of few tokens,
in the model's dtype of many. Nothing is added with atomics: each result is written once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.experts.gate import Gate
from kernels.experts.matrices import ExpertMatrix
from kernels.experts.order import PairTiles
from kernels.experts.route import Routed
from kernels.experts.tiles import ExpertTile
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import cdiv
from kernels.linear.fp8_rows import Fp8Rows

MAX_FLOAT_TOKENS = 64  # up to so many tokens products of `down` are float32
_SCALES = {"none": 0, "channel": 1, "block": 2}
_FP8_DEPTH = 128  # columns of a tile, which have one scale in blocks


def gated_reference(
    x: Tensor | Fp8Rows, routed: Routed, gate_up: ExpertMatrix, gate: Gate, dtype: torch.dtype
) -> Tensor:
    """x (T, H) -> (T k, I) of `dtype`. Plain PyTorch, float32 inside."""
    wide = _written_out(x).repeat_interleave(routed.experts.shape[1], 0)
    both = _by_expert(wide, routed, gate_up)
    return gated(both, gate).to(dtype)


def gated(both: Tensor, gate: Gate) -> Tensor:
    """[gate | up] (P, 2 I) float32 -> (P, I)."""
    left, up = both.chunk(2, -1)
    if gate.limit is None:
        return F.silu(left) * up
    left, up = left.clamp(max=gate.limit), up.clamp(-gate.limit, gate.limit)
    return left * torch.sigmoid(gate.alpha * left) * (up + 1)


def down_reference(
    hidden: Tensor | Fp8Rows, routed: Routed, down: ExpertMatrix, dtype: torch.dtype
) -> Tensor:
    """hidden (T k, I) -> (k, T, H) of `dtype`, each product times its weight. Plain PyTorch."""
    products = _by_expert(_written_out(hidden), routed, down)
    weighted = products * routed.weights.flatten()[:, None]
    return weighted.view(*routed.experts.shape, products.shape[1]).transpose(0, 1).to(dtype)


def _written_out(x: Tensor | Fp8Rows) -> Tensor:
    return x.dequantised() if isinstance(x, Fp8Rows) else x.float()


def _by_expert(x: Tensor, routed: Routed, matrix: ExpertMatrix) -> Tensor:
    """x (P, K) float32 by the matrix of each row's expert -> (P, N) float32."""
    owners = routed.experts.flatten()
    out = x.new_empty((x.shape[0], matrix.values.shape[1]))
    for expert in owners.unique().tolist():
        rows = (owners == expert).nonzero().flatten()
        bias = None if matrix.bias is None else matrix.bias[expert].float()
        out[rows] = F.linear(x[rows], matrix.dequantised(expert), bias)
    return out


@triton.jit
def _scaled(
    part: tl.tensor,
    x_scales: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    block: tl.tensor,
    step: tl.tensor,
    STEPS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> tl.tensor:
    """A tile's sum times the scales of its 128 columns: of the rows of x, and of the block."""
    of_rows = tl.load(x_scales + row * STEPS + step, mask=real, other=0.0)
    of_rows *= tl.load(scales + block * STEPS + step)
    return part * (of_rows[None, :] if WEIGHT_FIRST else of_rows[:, None])


@triton.jit
def _product(
    x: tl.tensor,
    weight: tl.tensor,
    acc: tl.tensor,
    WEIGHT_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
) -> tl.tensor:
    if UPCAST:  # the interpreter has no product of fp8
        x, weight = x.to(tl.float32), weight.to(tl.float32)
    if WEIGHT_FIRST:
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    return acc


@triton.jit
def _finished(
    acc: tl.tensor,
    x_scales: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    feature: tl.tensor,
    inside: tl.tensor,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
) -> tl.tensor:
    """The sum times the scales of rows and channels, plus the bias of these features."""
    if SCALES == 1:
        of_rows = tl.load(x_scales + row, mask=real, other=0.0)
        of_features = tl.load(scales + feature, mask=inside, other=0.0)
        if WEIGHT_FIRST:
            acc *= of_features[:, None] * of_rows[None, :]
        else:
            acc *= of_rows[:, None] * of_features[None, :]
    if HAS_BIAS:
        shift = tl.load(bias + feature, mask=inside, other=0.0).to(tl.float32)
        acc += shift[:, None] if WEIGHT_FIRST else shift[None, :]
    return acc


@triton.jit(do_not_specialize=["tokens"])
def _kernel(
    x: tl.tensor,
    x_scales: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    routing: tl.tensor,
    out: tl.tensor,
    pairs: tl.tensor,
    owners: tl.tensor,
    tokens: tl.tensor,
    limit: tl.tensor,
    alpha: tl.tensor,
    K: tl.constexpr,
    N: tl.constexpr,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    LIMITED: tl.constexpr,
    SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """A tile of pairs by FEATURES of the N outputs; GATED: by as many of gate and of up."""
    launch_dependents_and_wait(DEPENDENT)
    tile = tl.program_id(1)
    expert = tl.load(owners + tile).to(tl.int64)
    if expert < 0:
        return
    HEIGHT: tl.constexpr = 2 * N if GATED else N
    STEPS: tl.constexpr = (K + DEPTH - 1) // DEPTH
    BLOCKS: tl.constexpr = (HEIGHT + 127) // 128
    pair = tl.load(pairs + tile * ROWS + tl.arange(0, ROWS))
    real = pair < tokens * TOP_K
    row = (pair // TOP_K if GATED else pair).to(tl.int64)
    first = tl.program_id(0) * FEATURES
    feature = first + tl.arange(0, FEATURES)
    inside = feature < N
    column = tl.arange(0, DEPTH)
    inputs = x + row[:, None] * K + column[None, :]
    own = weight + expert * HEIGHT * K + feature[:, None].to(tl.int64) * K + column[None, :]
    own_scales = scales + expert * (BLOCKS * STEPS if SCALES == 2 else HEIGHT)
    if WEIGHT_FIRST:
        acc = tl.zeros([FEATURES, ROWS], tl.float32)
        up = tl.zeros([FEATURES, ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, FEATURES], tl.float32)
        up = tl.zeros([ROWS, FEATURES], tl.float32)
    empty = acc
    for step in range(STEPS):
        start = step * DEPTH
        EVEN: tl.constexpr = K % DEPTH == 0
        left = real[:, None] if EVEN else real[:, None] & (start + column < K)[None, :]
        right = inside[:, None] if EVEN else inside[:, None] & (start + column < K)[None, :]
        a = tl.load(inputs + start, mask=left, other=0.0)
        b = tl.load(own + start, mask=right, other=0.0)
        if SCALES == 2:
            part = _product(a, b, empty, WEIGHT_FIRST, UPCAST)
            acc += _scaled(
                part, x_scales, own_scales, row, real, first // 128, step, STEPS, WEIGHT_FIRST
            )
        else:
            acc = _product(a, b, acc, WEIGHT_FIRST, UPCAST)
        if GATED:
            c = tl.load(own + N * K + start, mask=right, other=0.0)
            if SCALES == 2:
                part = _product(a, c, empty, WEIGHT_FIRST, UPCAST)
                up += _scaled(
                    part, x_scales, own_scales, row, real, (N + first) // 128, step, STEPS,
                    WEIGHT_FIRST,
                )  # fmt: skip
            else:
                up = _product(a, c, up, WEIGHT_FIRST, UPCAST)
    own_bias = bias + expert * HEIGHT
    acc = _finished(
        acc, x_scales, own_scales, own_bias, row, real, feature, inside,
        SCALES, HAS_BIAS, WEIGHT_FIRST,
    )  # fmt: skip
    if GATED:
        up = _finished(
            up, x_scales, own_scales + N, own_bias + N, row, real, feature, inside,
            SCALES, HAS_BIAS, WEIGHT_FIRST,
        )  # fmt: skip
        if LIMITED:
            acc = tl.minimum(acc, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
            acc = acc / (1.0 + tl.exp(-alpha * acc)) * up
        else:
            acc = acc / (1.0 + tl.exp(-acc)) * up
        goal = pair.to(tl.int64) * N
    else:
        times = tl.load(routing + pair, mask=real, other=0.0)
        acc *= times[None, :] if WEIGHT_FIRST else times[:, None]
        goal = ((pair % TOP_K).to(tl.int64) * tokens + pair // TOP_K) * N
    result = acc.to(out.dtype.element_ty)
    if WEIGHT_FIRST:
        kept = inside[:, None] & real[None, :]
        tl.store(out + goal[None, :] + feature[:, None], result, mask=kept)
    else:
        kept = real[:, None] & inside[None, :]
        tl.store(out + goal[:, None] + feature[None, :], result, mask=kept)


def gated_launch(
    x: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    gate_up: ExpertMatrix,
    gate: Gate,
    dtype: torch.dtype,
) -> Tensor:
    """As `gated_reference`, on the device, for x whose rows lie side by side."""
    pairs, size = routed.experts.numel(), gate_up.values.shape[1] // 2
    out = torch.empty((pairs, size), dtype=dtype, device=tiles.pairs.device)
    _launch(x, routed, tiles, tile, gate_up, out, size, gate)
    return out


def down_launch(
    hidden: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    down: ExpertMatrix,
    dtype: torch.dtype,
) -> Tensor:
    """As `down_reference`, on the device."""
    (tokens, top_k), size = routed.experts.shape, down.values.shape[1]
    out = torch.empty((top_k, tokens, size), dtype=dtype, device=tiles.pairs.device)
    _launch(hidden, routed, tiles, tile, down, out, size, None)
    return out


def _launch(
    x: Tensor | Fp8Rows,
    routed: Routed,
    tiles: PairTiles,
    tile: ExpertTile,
    matrix: ExpertMatrix,
    out: Tensor,
    size: int,
    gate: Gate | None,
) -> None:
    tokens, top_k = routed.experts.shape
    if not tokens:
        return
    values, x_scales = (x.values, x.scales) if isinstance(x, Fp8Rows) else (x, x)
    depth = tile.depth // values.element_size()
    limit = None if gate is None else gate.limit
    _kernel[(cdiv(size, tile.features), tiles.experts.shape[0])](
        values,
        x_scales,
        matrix.values,
        matrix.values if matrix.scales is None else matrix.scales,
        matrix.values if matrix.bias is None else matrix.bias,
        routed.weights,
        out,
        tiles.pairs,
        tiles.experts,
        tokens,
        float(limit or 0.0),
        float(1.0 if gate is None else gate.alpha),
        K=values.shape[1],
        N=size,
        TOP_K=top_k,
        GATED=gate is not None,
        LIMITED=limit is not None,
        SCALES=_SCALES[matrix.kind],
        HAS_BIAS=matrix.bias is not None,
        ROWS=tile.rows,
        FEATURES=tile.features,
        DEPTH=_FP8_DEPTH if matrix.scales is not None else depth,
        WEIGHT_FIRST=tile.weight_first,
        UPCAST=not values.is_cuda and matrix.scales is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **dependent_launch(values.device),
    )
