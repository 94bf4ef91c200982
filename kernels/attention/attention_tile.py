"""A step of online softmax over one tile of paged keys. Decode and prefill kernels use it.

The recurrence is that of FlashAttention (Dao et al., 2022; Milakov and Gimelshein, 2018). q (M, D)
are query rows. k, v (TILE, D) are a tile of keys and values. c is scale * log2(e) > 0, so that exp2
can replace exp. Everything except the products is float32:

    s  = q k^T
    m' = max(m, c max s);  p = exp2(c s - m')      one fused multiply-add per score
    l' = l * exp2(m - m') + sum p;  acc' = acc * exp2(m - m') + p v

With a soft cap, cap * tanh(s / cap), in base 2, replaces c s. A sink is one more score that has no
value. It is added to the sum at the end (`average_with_sink`).

Keys and values in fp8 are converted to the dtype of q, and s and p are multiplied by their scales
(`fp8_kv`). If fp8 numbers are read in pairs (`fp8_pairs`), q and acc are two tensors each, for even
and odd columns. This module has only device code. Table entries and slots at or after `end` are
never read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.kv.fp8_pairs import high_numbers, low_numbers, shift_of_keys, shift_of_values

LOG2_E = 1.4426950408889634


@triton.jit
def attend_tile(
    q: tl.tensor,
    acc: tl.tensor,
    m: tl.tensor,
    total: tl.tensor,
    kv: tl.tensor,
    scales: tl.tensor,
    table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    last_key: tl.tensor,
    log2_scale: tl.tensor,
    block_stride: tl.tensor,
    value_stride: tl.tensor,
    B: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    SCALED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    first_key: tl.tensor,
    WINDOWED: tl.constexpr,
    PAIRS: tl.constexpr,
) -> tl.tensor:
    """Add the keys [start, start + TILE) to the state (acc, m, total). Return the new state.

    `kv` points to this KV head in block 0, `scales` (if SCALED) to the head's scales in block 0,
    and `table` to this row's block ids. `start` is the first key of a block, or of a tile if blocks
    are longer than tiles. With MASKED, keys at or after `end` are not read, and row i of q attends
    to keys up to last_key[i]. Without MASKED, all keys of the tile exist, and every row attends to
    all of them. With MASKED and WINDOWED, row i does not attend to keys before first_key[i].
    SOFTCAP is the cap on natural scores, or None. With PAIRS, `kv` points to pairs, so D, D_PADDED
    and the strides count pairs.
    """
    index = tl.arange(0, TILE)
    key = start + index
    column = tl.arange(0, D_PADDED)
    # Only the block ids differ between tiles, so that the compiler can compute all other addresses
    # before the loop.
    slot = index % B + (start % B if TILE < B else 0)
    entry = table + start // B + index // B
    block = tl.load(entry, mask=key < end, other=0) if MASKED else tl.load(entry)
    address = kv + (slot * D)[:, None] + column[None, :]
    address += (block.to(tl.int64) * block_stride)[:, None]
    if MASKED:
        wanted = (key < end)[:, None] & (column < D)[None, :]
        k = tl.load(address, mask=wanted, other=0.0)
        v = tl.load(address + value_stride, mask=wanted, other=0.0)
    elif D_PADDED != D:
        wanted = (column < D)[None, :]
        k = tl.load(address, mask=wanted, other=0.0)
        v = tl.load(address + value_stride, mask=wanted, other=0.0)
    else:
        k = tl.load(address)
        v = tl.load(address + value_stride)

    if SCALED:
        # The scales of values follow the scales of keys, as values follow keys. There is one scale
        # per D numbers.
        own = scales + slot + block.to(tl.int64) * (block_stride if PAIRS else block_stride // 2)
        of_values = own + value_stride // D
        if MASKED:
            k_scale = tl.load(own, mask=key < end, other=0.0).to(tl.float32)
            v_scale = tl.load(of_values, mask=key < end, other=0.0).to(tl.float32)
        else:
            k_scale, v_scale = tl.load(own).to(tl.float32), tl.load(of_values).to(tl.float32)

    if PAIRS:
        k_scale *= shift_of_keys(q[0].dtype)
        v_scale *= shift_of_values(q[0].dtype)
        k = tl.trans(k)
        scores = tl.dot(q[0], low_numbers(k, q[0].dtype, PAIRS), input_precision="ieee")
        scores = tl.dot(q[1], high_numbers(k, q[1].dtype, PAIRS), scores, input_precision="ieee")
    else:
        # Via float32, because direct conversion to bfloat16 handles one number at a time.
        if SCALED:
            k, v = k.to(tl.float32).to(q.dtype), v.to(tl.float32).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SCALED:
        scores *= k_scale[None, :]
    factor = log2_scale
    if SOFTCAP is not None:
        scores = _capped(scores * log2_scale, SOFTCAP)
        factor = 1.0
    if MASKED:
        visible = key[None, :] <= last_key[:, None]
        if WINDOWED:
            visible = visible & (key[None, :] >= first_key[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    m_new = tl.maximum(m, tl.max(scores, axis=1) * factor)
    # If a row has attended to no key yet, use a finite maximum, so that its sums stay zero.
    anchor = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
    shrink = tl.exp2(m - anchor)
    p = tl.exp2(scores * factor - anchor[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    if SCALED:
        p *= v_scale[None, :]
    if PAIRS:
        p = p.to(q[0].dtype)
        low = tl.dot(p, low_numbers(v, q[0].dtype, PAIRS), input_precision="ieee")
        high = tl.dot(p, high_numbers(v, q[0].dtype, PAIRS), input_precision="ieee")
        acc = (acc[0] * shrink[:, None] + low, acc[1] * shrink[:, None] + high)
    else:
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return acc, m_new, total


@triton.jit
def _capped(scores: tl.tensor, SOFTCAP: tl.constexpr) -> tl.tensor:
    """Apply the soft cap to scores in base 2, with tanh(z) = 1 - 2 / (1 + exp(2 z))."""
    most: tl.constexpr = SOFTCAP * 1.4426950408889634
    return most - 2 * most / (1.0 + tl.exp2(scores * (2.0 / SOFTCAP)))


@triton.jit
def average(acc: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Divide acc (M, D) by total (M,). A row that attended to no key gets 0."""
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def average_with_sink(acc: tl.tensor, m: tl.tensor, total: tl.tensor, sink: tl.tensor) -> tl.tensor:
    """Compute `average` with the sink's score (M,) added to the sum. It is finite and natural."""
    sink = sink.to(tl.float32) * 1.4426950408889634
    largest = tl.maximum(m, sink)
    shrink = tl.exp2(m - largest)
    total = total * shrink + tl.exp2(sink - largest)
    return acc * (shrink / total)[:, None]
