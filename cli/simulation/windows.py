"""What it would give to free KV that no token sees any more, in layers that attend over a window.

    a sequence of n tokens    n x KV of the other layers + min(n, window) x KV of such a layer

It is kept whole in all layers, so that a cached prefix can be continued anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cli.simulation.decoder import BLOCK_SIZE, DecoderCounts
from engine.models.config import kv_layout


@dataclass(frozen=True, slots=True)
class WindowFit:
    """Tokens that would fit the device if KV outside of windows were freed."""

    windows: tuple[int, ...]  # tokens, each once
    layers: int  # that have one
    sequence_tokens: int
    device_tokens: int  # in sequences of so many tokens
    device_tokens_at_most: int | None  # in ever longer ones; None: all layers have windows


def window_fit(
    decoder: DecoderCounts, device_tokens: int, sequence_tokens: int
) -> WindowFit | None:
    """What freeing would make of `device_tokens`; None for a model without windows."""
    windows = list(_windows(decoder))
    if not windows:
        return None
    whole = decoder.kv_bytes_per_token
    freed = _freed_bytes(decoder, sequence_tokens)
    kept_for_ever = whole - sum(one_layer for _, one_layer in windows)
    return WindowFit(
        windows=tuple(sorted({window for window, _ in windows})),
        layers=len(windows),
        sequence_tokens=sequence_tokens,
        device_tokens=int(
            device_tokens * whole * sequence_tokens / (whole * sequence_tokens - freed)
        ),
        device_tokens_at_most=device_tokens * whole // kept_for_ever if kept_for_ever else None,
    )


def _windows(decoder: DecoderCounts) -> Iterator[tuple[int, int]]:
    """Of each layer with a window: its tokens, and the KV bytes of a token in that layer."""
    dtype = decoder.kv.groups[0].dtype
    for layer in decoder.layers:
        if layer.attention.window is not None:
            yield layer.attention.window, kv_layout([layer], dtype, BLOCK_SIZE).token_bytes


def _freed_bytes(decoder: DecoderCounts, tokens: int) -> int:
    """Of a sequence."""
    return sum(max(0, tokens - window) * size for window, size in _windows(decoder))


def window_line(fit: WindowFit, layers: int) -> str:
    """The same for people."""
    windows = ", ".join(f"{window:,}" for window in fit.windows)
    most = "" if fit.device_tokens_at_most is None else f", {fit.device_tokens_at_most:,} at most"
    return (
        f"{fit.layers} of {layers} layers attend over {windows} tokens, and keep the KV of all. "
        f"Freed outside of windows, {fit.device_tokens:,} tokens would fit the device in sequences "
        f"of {fit.sequence_tokens:,}{most}."
    )
