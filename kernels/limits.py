"""The geometries that kernels support, on the device and in the references.

The engine checks once, before it loads a model; every op checks again, which takes a microsecond.
"""

from __future__ import annotations

from kernels.errors import UnsupportedShape

MIN_HEAD_DIM = 16
MAX_HEAD_DIM = 256
MIN_BLOCK_SIZE = 16
MAX_QUERY_HEADS_PER_KV_HEAD = 16
MAX_HIDDEN_SIZE = 65_536
INT4_SPAN = 128  # columns of a span of a 4-bit integer matrix (`linear.int4_matrix`)
KV_SCALE_BYTES = 2  # bytes of a scale of a head's key or value in fp8 (`attention.fp8_kv`)


def check_hidden_size(hidden_size: int) -> None:
    """Raise UnsupportedShape unless kernels can norm a row of `hidden_size` numbers."""
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise UnsupportedShape(f"hidden size {hidden_size} is not in 1..{MAX_HIDDEN_SIZE}")


def check_attention(num_q_heads: int, num_kv_heads: int, *, block_size: int, head_dim: int) -> None:
    """Raise UnsupportedShape unless kernels can compute attention of this geometry."""
    whole = num_kv_heads > 0 and num_q_heads > 0 and num_q_heads % num_kv_heads == 0
    if not whole or num_q_heads // num_kv_heads > MAX_QUERY_HEADS_PER_KV_HEAD:
        raise UnsupportedShape(
            f"{num_q_heads} query heads over {num_kv_heads} KV heads is not a whole group of "
            f"1..{MAX_QUERY_HEADS_PER_KV_HEAD}"
        )
    if head_dim % 2 or not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        raise UnsupportedShape(
            f"head dim {head_dim} is not an even number in {MIN_HEAD_DIM}..{MAX_HEAD_DIM}"
        )
    if block_size < MIN_BLOCK_SIZE or block_size & (block_size - 1):
        raise UnsupportedShape(
            f"block size {block_size} is not a power of two from {MIN_BLOCK_SIZE} up"
        )
