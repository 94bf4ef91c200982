"""How an expert's two inner products become one. No torch: configs of models have it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gate:
    """silu(gate) * up; with a `limit`, as gpt-oss has it.

    Then gate is at most `limit`, up within +- `limit`, and gate * sigmoid(alpha * gate) * (up + 1)
    is computed.
    """

    limit: float | None = None
    alpha: float = 1.0


SILU = Gate()
