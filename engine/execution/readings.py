"""The hidden states and selected logits of a step, copied to the host with the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.step import Launched, Row, Sampled
from engine.transfers import HostCopy, to_device


def are_read(rows: Sequence[Row]) -> bool:
    """Return whether any row asks for an embedding or for the logits of candidates."""
    return any(row.embeds or row.candidates for row in rows)


@dataclass(frozen=True, slots=True)
class Readings:
    """The hidden states and logits of a step's sampling rows, being copied to the host.

    `embedding` are the indices of the E rows whose hidden states (E, H) float32 are copied.
    `counts` has each row's number of candidates. The logits (C,) float32 of all C candidates are
    copied.
    """

    embedding: Sequence[int]
    states: HostCopy
    counts: Sequence[int]
    logits: HostCopy

    def add_to(self, sampled: list[Sampled]) -> list[Sampled]:
        """Wait for the copies. Return the samples with their readings."""
        for place, state in zip(self.embedding, self.states.wait(), strict=True):
            sampled[place] = sampled[place]._replace(embedding=state.tobytes())
        logits, first = self.logits.wait(), 0
        for place, count in enumerate(self.counts):
            if count:
                found = logits[first : first + count].tobytes()
                sampled[place] = sampled[place]._replace(candidates=found)
            first += count
        return sampled


def read(hidden: Tensor, logits: Tensor, rows: Sequence[Row]) -> Readings:
    """Start copying the parts of `hidden` (R, H) and `logits` (R, V) that `rows` need.

    Both tensors stay unchanged. The call does not wait for the device.
    """
    embedding = [place for place, row in enumerate(rows) if row.embeds]
    ids = [np.frombuffer(row.candidates, "<i4").astype(np.int64) for row in rows]
    counts = [len(one) for one in ids]
    arrays = [
        np.array(embedding, np.int64),
        np.repeat(np.arange(len(rows)), counts),
        np.concatenate(ids),
    ]
    states_of, logits_of, columns = to_device(arrays, hidden.device)
    states = HostCopy(hidden.index_select(0, states_of).float())
    return Readings(embedding, states, counts, HostCopy(logits[logits_of, columns].float()))


@dataclass(frozen=True, slots=True)
class LaunchedWithReadings:
    """The samples and readings of a step. Implements `Launched`."""

    launched: Launched
    readings: Readings

    def collect(self) -> list[Sampled]:
        """Wait for the step. Return one `Sampled` per row, in order."""
        return self.readings.add_to(self.launched.collect())
