"""The gate of an MLP, between its inner products.

Torch is not imported, since model configs import the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "relu2"]


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate act(gate) * up, or gpt-oss's form with a `limit`.

    With a `limit`, gate is at most `limit`, and up is between -`limit` and `limit`. The result is
    gate * sigmoid(alpha * gate) * (up + 1), for any `act`. "relu2" has no gate: relu(up)^2.
    """

    limit: float | None = None
    alpha: float = 1.0
    act: Activation = "silu"

    @property
    def factors(self) -> int:
        """The number of inner products that are combined: 1 without a gate, else 2."""
        return 1 if self.act == "relu2" else 2


SILU = Gate()
GELU_TANH = Gate(act="gelu_tanh")
RELU2 = Gate(act="relu2")
