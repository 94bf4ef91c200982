"""The variants of attention beyond softmax(q k^T) v, as data.

    score = scale * q . k           for keys in the window alone, if there is a window
    score = softcap * tanh(score / softcap)                            if there is a softcap
    p_j   = exp(score_j) / (exp(sink of the head) + sum_i exp(score_i))  if there are sinks

The sinks' scores are a tensor (Hq,) of the model, passed as another argument. Torch is not
imported, since configs of models have an `AttentionVariant`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.errors import UnsupportedShape


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """A variant of attention.

    `window` is the number of keys that a token sees, including its own, or None for all. Raises
    UnsupportedShape for a window below 1 or a cap that is not above 0.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UnsupportedShape(f"a window of {self.window} keys has not even the token itself")
        if self.softcap is not None and self.softcap <= 0:
            raise UnsupportedShape(f"soft cap {self.softcap} is not above 0")
