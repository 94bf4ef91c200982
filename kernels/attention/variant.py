"""What attention computes beyond softmax(q k^T) v, as data.

    score = scale * q . k           of keys in the window alone, where there is one
    score = softcap * tanh(score / softcap)                            where there is a softcap
    p_j   = exp(score_j) / (exp(sink of the head) + sum_i exp(score_i))  where there are sinks

The sinks themselves are a tensor (Hq,) of the model, given beside this. No torch: configs of models
have it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """`window`: how many keys a token sees, itself included; None: all."""

    scale: float
    window: int | None = None
    softcap: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every key counts, with a score as it is."""
        return self.window is None and self.softcap is None
