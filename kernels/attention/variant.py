"""The variants of attention other than softmax(q k^T) v, as a data record.

    score = scale * q . k           only for keys in the window, if there is a window
    score = softcap * tanh(score / softcap)                            if there is a softcap
    p_j   = exp(score_j) / (exp(sink of the head) + sum_i exp(score_i))  if there are sinks

The sinks' scores are a tensor (Hq,) of the model, which is passed separately. This module does not
import torch, because configs of models have an `AttentionVariant`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.errors import UnsupportedShape


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """A variant of attention.

    `window` is the number of keys to which a token attends, including its own, or None for all.
    Raises UnsupportedShape for a window less than 1 or a cap that is not positive.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UnsupportedShape(f"a window of {self.window} keys has not even the token itself")
        if self.softcap is not None and self.softcap <= 0:
            raise UnsupportedShape(f"soft cap {self.softcap} is not above 0")
