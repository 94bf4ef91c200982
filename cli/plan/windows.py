"""The KV tokens gained if layers with an attention window freed KV outside of the window.

    a sequence of n tokens    n x KV of the other layers + min(n, window) x KV of such a layer

It is kept whole in all layers, so that a cached prefix can be continued anywhere.
"""

from dataclasses import dataclass

from cli.plan.decoder import DecoderCounts
from engine.models.layers.layer import attentions


@dataclass(frozen=True, slots=True)
class WindowFit:
    """Tokens that would fit the device if KV outside of windows were freed."""

    windows: tuple[int, ...]  # distinct window sizes in tokens
    layers: int  # layers that have a window
    sequence_tokens: int
    device_tokens: int  # tokens that fit in sequences of so many tokens
    device_tokens_at_most: int | None  # in ever longer ones; None: all layers have windows


def window_fit(
    decoder: DecoderCounts, device_tokens: int, sequence_tokens: int
) -> WindowFit | None:
    """Estimate the gain on `device_tokens`; None for a model without windows."""
    windows, whole = decoder.shape.windows, decoder.kv_bytes_per_token
    if not windows:
        return None
    kept, _ = decoder.shape.context_costs(sequence_tokens)
    without = whole - sum(one.kv_bytes_per_token for one in windows)
    return WindowFit(
        windows=tuple(one.tokens for one in windows),
        layers=sum(one.window is not None for one in attentions(decoder.layers)),
        sequence_tokens=sequence_tokens,
        device_tokens=int(device_tokens * whole * sequence_tokens / kept),
        device_tokens_at_most=device_tokens * whole // without if without else None,
    )


def window_line(fit: WindowFit, layers: int) -> str:
    """Describe the gain for people."""
    windows = ", ".join(f"{window:,}" for window in fit.windows)
    most = "" if fit.device_tokens_at_most is None else f", {fit.device_tokens_at_most:,} at most"
    return (
        f"{fit.layers} of {layers} layers attend over {windows} tokens, and keep the KV of all. "
        f"Freed outside of windows, {fit.device_tokens:,} tokens would fit the device in sequences "
        f"of {fit.sequence_tokens:,}{most}."
    )
