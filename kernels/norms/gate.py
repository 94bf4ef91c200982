"""The gate of an MLP, which combines its inner products.

This module does not import torch, because model configs import this module and must not import
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "relu2"]


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate: act(gate) * up, or the form of gpt-oss if it has a `limit`.

    With a `limit`, gate is at most `limit`, and up is between -`limit` and `limit`. The result is
    then gate * sigmoid(alpha * gate) * (up + 1), and `act` is ignored. The act "relu2" has no gate
    and computes relu(up)^2.
    """

    limit: float | None = None
    alpha: float = 1.0
    act: Activation = "silu"

    @property
    def factors(self) -> int:
        """The number of inner products that are combined: 1 for "relu2", otherwise 2."""
        return 1 if self.act == "relu2" else 2


SILU = Gate()
GELU_TANH = Gate(act="gelu_tanh")
RELU2 = Gate(act="relu2")
