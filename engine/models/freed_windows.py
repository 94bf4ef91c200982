"""The choice whether layers with a window free the KV before the window, and both layouts.

    whole    a block has all layers
    freed    a block has the layers without a window; each sequence has a ring for the other layers

A ring has the same size for short and long sequences. A prompt can continue from the cache only
where a ring was kept. Windows are therefore freed only if this makes room for sequences of usual
length. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.config import kv_layout, state_layout
from engine.models.layers.layer import LayerConfig, attentions, keeps_kv
from engine.models.layers.mixer import KvConfig
from storage.layouts.kv_layout import KvLayout
from storage.layouts.window_layout import SlotLayout, WindowLayout

USUAL_TOKENS = 4096  # usual length of a sequence, as in prompts of agents or with documents
RINGS = 2  # rings of a running sequence (`prefix_cache.leases.lease_states`)
LEAST_GAIN = 1.5  # minimum gain in sequences that fit, to make up for fewer cache hits


@dataclass(frozen=True, slots=True)
class MemoryLayouts:
    """The layouts of KV blocks, and of a sequence's recurrent state or rings, if any."""

    kv: KvLayout
    states: SlotLayout | None

    @property
    def frees_windows(self) -> bool:
        """True if KV blocks exclude the layers with an attention window."""
        return isinstance(self.states, WindowLayout)


def whole(
    layers: Sequence[LayerConfig], kv_dtype: str, dtype: str, block_size: int
) -> MemoryLayouts:
    """Lay out blocks of all layers that keep KV, and the recurrent layers' state."""
    return MemoryLayouts(kv_layout(layers, kv_dtype, block_size), state_layout(layers, dtype))


def freed(layers: Sequence[LayerConfig], kv_dtype: str, block_size: int) -> MemoryLayouts | None:
    """Lay out blocks without the layers that have a window, or return None.

    The layout needs layers with a window, layers without a window, and no recurrent layer.
    """
    keeping = [layer for layer in layers if keeps_kv(layer)]
    others = [layer for layer in keeping if window_of(layer) is None]
    behind = [layer for layer in keeping if window_of(layer) is not None]
    if not others or not behind or len(attentions(layers)) < len(layers):
        return None
    kv = kv_layout(others, kv_dtype, block_size)
    ring = WindowLayout.of(kv_layout(behind, kv_dtype, block_size), kv.block_bytes)
    return MemoryLayouts(kv, ring)


def pays(given: MemoryLayouts, kept_whole: KvLayout) -> bool:
    """Return whether it is worth freeing windows."""
    ring = given.states
    assert isinstance(ring, WindowLayout), "windows are freed"
    of_sequence = USUAL_TOKENS * given.kv.token_bytes + RINGS * ring.state_bytes
    gain = USUAL_TOKENS * kept_whole.token_bytes / of_sequence
    return gain >= LEAST_GAIN


def window_of(layer: LayerConfig) -> int | None:
    """Return a layer's window in tokens, or None without a window."""
    return layer.mixer.window if isinstance(layer.mixer, KvConfig) else None
