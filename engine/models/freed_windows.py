"""The choice whether layers with a window free the KV before the window, and the two layouts.

    whole    a block has the KV of all layers
    freed    a block has the KV of layers without a window; the other KV is in a ring buffer

A ring buffer has the same size for short and long sequences. A prompt can continue from the cache
only at a position where a ring buffer was stored. Windows are therefore freed only if clearly more
sequences of usual length then fit into memory. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.config import kv_layout, state_layout
from engine.models.layers.layer import LayerConfig, attentions, keeps_kv
from engine.models.layers.mixer import KvConfig
from storage.layouts.kv_layout import KvLayout
from storage.layouts.window_layout import SlotLayout, WindowLayout

USUAL_TOKENS = 4096  # usual length of a sequence in tokens, such as agents' prompts or documents
RINGS = 2  # ring buffers of a running sequence (`prefix_cache.leases.lease_states`)
LEAST_GAIN = 1.5  # minimum factor of more sequences that fit, to compensate for fewer cache hits


@dataclass(frozen=True, slots=True)
class MemoryLayouts:
    """The layouts of KV blocks, and of a sequence's recurrent state or ring buffers, if any."""

    kv: KvLayout
    states: SlotLayout | None

    @property
    def frees_windows(self) -> bool:
        """True if KV blocks exclude the layers with an attention window."""
        return isinstance(self.states, WindowLayout)


def whole(
    layers: Sequence[LayerConfig], kv_dtype: str, dtype: str, block_size: int
) -> MemoryLayouts:
    """Return the layouts if blocks have the KV of all layers that keep KV."""
    return MemoryLayouts(kv_layout(layers, kv_dtype, block_size), state_layout(layers, dtype))


def freed(layers: Sequence[LayerConfig], kv_dtype: str, block_size: int) -> MemoryLayouts | None:
    """Return the layouts if blocks exclude the layers with a window, or None if impossible.

    It is possible with layers of both kinds, with and without a window, and no recurrent layer.
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
    """Return whether the layouts `given`, with freed windows, are worth using."""
    ring = given.states
    assert isinstance(ring, WindowLayout), "windows are freed"
    of_sequence = USUAL_TOKENS * given.kv.token_bytes + RINGS * ring.state_bytes
    gain = USUAL_TOKENS * kept_whole.token_bytes / of_sequence
    return gain >= LEAST_GAIN


def window_of(layer: LayerConfig) -> int | None:
    """Return a layer's window in tokens, or None without a window."""
    return layer.mixer.window if isinstance(layer.mixer, KvConfig) else None
