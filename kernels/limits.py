"""The geometries that kernels support, on the device and in the references.

The engine checks a geometry once, before it loads a model. Every op checks again, which takes about
a microsecond.
"""

from __future__ import annotations

from kernels.errors import UnsupportedShape

MIN_HEAD_DIM = 16
MAX_HEAD_DIM = 512
MIN_BLOCK_SIZE = 16
MAX_QUERY_HEADS_PER_KV_HEAD = 16
MAX_HIDDEN_SIZE = 65_536
INT4_SPAN = 128  # number of columns in a span of a 4-bit integer matrix (`linear.int4_matrix`)
MAX_EXPERT_GROUPS = 32
MAX_CONV_WIDTH = 4
STATE_PRODUCTS = (16, 32, 64, 128, 256)
MAX_STATE_COLUMNS = 256
LATENT_RANKS = (32, 64, 128, 256, 512)
LATENT_ROPES = (16, 32, 64, 128)
KV_SCALE_BYTES = 2  # bytes of the scale of one head's key or value in fp8 (`attention.kv.fp8_kv`)


def check_hidden_size(hidden_size: int) -> None:
    """Raise UnsupportedShape unless kernels can norm a row of `hidden_size` numbers."""
    if not 1 <= hidden_size <= MAX_HIDDEN_SIZE:
        raise UnsupportedShape(f"hidden size {hidden_size} is not in 1..{MAX_HIDDEN_SIZE}")


def check_groups(
    num_experts: int, groups: int, top_groups: int, top_k: int, group_best: int = 2
) -> None:
    """Raise UnsupportedShape unless `top_k` experts can be chosen from the best groups."""
    size = num_experts // groups
    if groups == 1 == top_groups:
        return
    if size < group_best or groups * size != num_experts or groups > MAX_EXPERT_GROUPS:
        raise UnsupportedShape(
            f"{num_experts} experts in {groups} groups: served are up to {MAX_EXPERT_GROUPS} of "
            "one size"
        )
    if not top_k <= top_groups * size <= num_experts:
        raise UnsupportedShape(f"{top_k} experts of {top_groups} groups of {size}, of {groups}")


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


def check_latents(*, rank: int, rope: int, head_dim: int, block_size: int) -> None:
    """Raise UnsupportedShape unless kernels can attend to latents of this geometry.

    A latent has `rank` numbers, and its rotated key has `rope` numbers. A query head has `head_dim`
    numbers.
    """
    if rank not in LATENT_RANKS:
        raise UnsupportedShape(f"a latent of {rank} numbers is not one of {LATENT_RANKS}")
    if rope not in LATENT_ROPES:
        raise UnsupportedShape(f"a rotated key of {rope} numbers is not one of {LATENT_ROPES}")
    check_attention(1, 1, block_size=block_size, head_dim=head_dim)


def check_conv(width: int) -> None:
    """Raise UnsupportedShape unless kernels can compute a convolution with `width` taps."""
    if not 2 <= width <= MAX_CONV_WIDTH:
        raise UnsupportedShape(f"a convolution of {width} taps is not of 2..{MAX_CONV_WIDTH}")


def check_state(*, heads: int, groups: int, columns: int, products: int) -> None:
    """Raise UnsupportedShape unless kernels can keep a recurrent state of this geometry.

    The `heads` are divided evenly among `groups`. The heads of a group share a key (or B and C). A
    head's state is `products` x `columns`. The head has `columns` outputs, and each output is a sum
    of `products` products.
    """
    if not (groups > 0 and heads > 0 and heads % groups == 0):
        raise UnsupportedShape(
            f"{heads} heads of states over {groups} groups is not a whole number"
        )
    if products not in STATE_PRODUCTS:
        raise UnsupportedShape(
            f"{products} numbers of a state's key is not one of {STATE_PRODUCTS}"
        )
    if columns % 16 or not 16 <= columns <= MAX_STATE_COLUMNS:
        raise UnsupportedShape(
            f"{columns} columns of a state is not a multiple of 16 in 16..{MAX_STATE_COLUMNS}"
        )
