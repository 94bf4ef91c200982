"""The gate that makes one of an MLP's two inner products. No torch: configs of models have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Gate:
    """act(gate) * up; with a `limit`, as gpt-oss has it.

    Then gate is at most `limit`, up within +- `limit`, and gate * sigmoid(alpha * gate) * (up + 1)
    is computed, whatever `act`.
    """

    limit: float | None = None
    alpha: float = 1.0
    act: Activation = "silu"


SILU = Gate()
GELU_TANH = Gate(act="gelu_tanh")
