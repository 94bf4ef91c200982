"""The hidden states of rows that embed, which go to the host beside what the step samples.

Knows: rows, hidden states. Does not know: logits, or how an embedding is scaled or shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.step import Launched, Row, Sampled
from engine.transfers import HostCopy, to_device


def has_embeddings(rows: Sequence[Row]) -> bool:
    """Return whether any of the rows embeds."""
    return any(row.embeds for row in rows)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A step's samples, with the hidden states of its rows that embed; implements `Launched`.

    `places`: the indices of E of the sampling rows, whose states (E, H) float32 are copied.
    """

    launched: Launched
    transfer: HostCopy
    places: Sequence[int]

    def collect(self) -> list[Sampled]:
        """Wait for the step; return one `Sampled` per row, in order."""
        sampled, states = self.launched.collect(), self.transfer.wait()
        for place, state in zip(self.places, states, strict=True):
            sampled[place] = sampled[place]._replace(embedding=state.tobytes())
        return sampled


def embedded(launched: Launched, hidden: Tensor, rows: Sequence[Row]) -> Launched:
    """Copy the hidden states (R, H) of those of `rows` (R) that embed to the host, as float32."""
    places = [place for place, row in enumerate(rows) if row.embeds]
    [index] = to_device([np.array(places, np.int64)], hidden.device)
    return Embedded(launched, HostCopy(hidden.index_select(0, index).float()), places)
