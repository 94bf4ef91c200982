"""Layouts of KV for models whose layers are all alike."""

from __future__ import annotations

from storage.layouts.kv_layout import KvGroup, KvLayout


def alike_layers(
    num_layers: int, num_kv_heads: int, head_dim: int, dtype: str, block_size: int
) -> KvLayout:
    """Return the layout of a model whose layers are all alike and see all tokens."""
    group = KvGroup(tuple(range(num_layers)), num_kv_heads, head_dim, dtype)
    return KvLayout((group,), block_size)
