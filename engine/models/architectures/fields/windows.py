"""The sliding windows of attention layers, in tokens.

    sliding_window                          a window in every layer (Mistral, Mixtral)
    use_sliding_window, max_window_layers   from layer `max_window_layers` on (Qwen2, Qwen3)
    layer_types                             in the sliding layers (Qwen2, Qwen3, gpt-oss, Gemma)

A token attends to as many keys as the window has tokens, including its own key.

Elsewhere: the layers (`layers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from engine.models.config import ModelSizes, Positive
from engine.models.errors import BadConfig, UnsupportedModel

FULL, SLIDING = "full_attention", "sliding_attention"
# The defaults for families whose configs may omit these fields.
USUAL_WINDOW = 4096
USUAL_FULL_LAYERS = 28

Windows = tuple[int | None, ...]  # window of each layer in tokens; None: the whole context
T = TypeVar("T")


class WindowFields(ModelSizes, kw_only=True):
    """The fields of config.json about windows, in addition to the sizes."""

    max_position_embeddings: Positive | None = None
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: list[str] | None = None

    def window(self, default: int | None) -> int | None:
        """Return `sliding_window`, or `default` if the field is absent.

        Raises BadConfig if it is less than 1.
        """
        window = default if self.sliding_window is msgspec.UNSET else self.sliding_window
        if window is not None and window < 1:
            raise BadConfig(f"sliding_window {window}: a window has 1 token or more")
        return window


WindowRule = Callable[[WindowFields], Windows]


def no_window(raw: WindowFields) -> Windows:
    """Return no window for any layer, even if the config has one (Llama)."""
    return (None,) * raw.num_hidden_layers


def in_every_layer(raw: WindowFields) -> Windows:
    """Return a window for every layer if the config has a window (Mixtral)."""
    return (raw.window(None),) * raw.num_hidden_layers


def in_every_layer_by_default(raw: WindowFields) -> Windows:
    """Return a window for every layer, the default if the config omits it (Mistral).

    A config with null has no windows.
    """
    return (raw.window(USUAL_WINDOW),) * raw.num_hidden_layers


def in_every_layer_by_flag(raw: WindowFields) -> Windows:
    """Return a window for every layer if `use_sliding_window` is true (Qwen3-MoE)."""
    window = raw.window(USUAL_WINDOW) if raw.use_sliding_window else None
    return (window,) * raw.num_hidden_layers


def by_layer(raw: WindowFields) -> Windows:
    """Return windows for the layers in `layer_types`, or from `max_window_layers` on (Qwen)."""
    window, layers = raw.window(USUAL_WINDOW), raw.num_hidden_layers
    if raw.use_sliding_window and raw.layer_types is None:
        given = raw.max_window_layers
        full = max(0, min(USUAL_FULL_LAYERS if given is None else given, layers))
        return (None,) * full + (window,) * (layers - full)
    if SLIDING in (raw.layer_types or ()) and not raw.use_sliding_window:
        raise BadConfig(f"layer_types has {SLIDING}, and use_sliding_window is false")
    return windows_of(raw.layer_types or (FULL,) * layers, layers, window)


def one_full_in(period: int, window: int = USUAL_WINDOW, *, first: bool = False) -> WindowRule:
    """Return a rule: windows as in `layer_types`, by default in all but one of `period` layers."""

    def rule(raw: WindowFields) -> Windows:
        count = raw.num_hidden_layers
        places = range(count) if first else range(1, count + 1)
        usual = [SLIDING if place % period else FULL for place in places]
        return windows_of(raw.layer_types or usual, count, raw.window(window))

    return rule


def windows_of(layer_types: Sequence[str], layers: int, window: int | None) -> Windows:
    """Return the window of each layer, from its type. Raises ModelError."""
    if window is None and SLIDING in layer_types:
        raise BadConfig(f"layer_types has {SLIDING}, and sliding_window is null")
    return by_type(layer_types, layers, {FULL: None, SLIDING: window})


def by_type(layer_types: Sequence[str], layers: int, of_type: dict[str, T]) -> tuple[T, ...]:
    """Return `of_type[type]` for the type of each layer. Raises ModelError."""
    if len(layer_types) != layers:
        raise BadConfig(f"layer_types has {len(layer_types)} entries, of {layers} layers")
    for kind in layer_types:
        if kind not in of_type:
            raise UnsupportedModel(f"layer_types {kind!r}: served are {', '.join(of_type)}")
    return tuple(of_type[kind] for kind in layer_types)


def in_use(windows: Windows, positions: int | None) -> Windows:
    """Replace windows that are not shorter than the maximum context, `positions`, by None."""
    return tuple(
        None if window is None or (positions is not None and window >= positions) else window
        for window in windows
    )
