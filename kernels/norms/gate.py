"""The gate of an MLP, which combines two inner products. No torch: model configs import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate act(gate) * up; with a `limit`, gpt-oss's form.

    Then gate is at most `limit`, up within +- `limit`, and gate * sigmoid(alpha * gate) * (up + 1)
    is computed, whatever `act`.
    """

    limit: float | None = None
    alpha: float = 1.0
    act: Activation = "silu"


SILU = Gate()
GELU_TANH = Gate(act="gelu_tanh")
