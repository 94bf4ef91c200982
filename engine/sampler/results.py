"""Brings a step's choices from the device to the host, in one copy.

Knows: how the numbers are packed. Does not know: how they were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.device import mark
from engine.messages import TokenLogprobs
from engine.sampler.logprobs import Report
from engine.staging import host_buffer
from engine.step import Sampled

Packed = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ReportShape:
    """Which rows report log-probabilities, and how many each, known before the step runs."""

    rows: tuple[int, ...]
    counts: tuple[int, ...]


class Transfer:
    """A device tensor on its way to the host, as it is now; it may be written again at once."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = host_buffer(tensor.shape, tensor.dtype, tensor.device)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = mark(tensor.device)

    def wait(self) -> Packed:
        """The tensor's numbers, once everything launched before it is done."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy()


def pack(tokens: Tensor, finite: Tensor, report: Report | None) -> Tensor:
    """One int32 tensor: tokens (R), finite (R), chosen (L), top (L M), top ids (L M).

    Floats travel as their bits.
    """
    parts = [tokens.to(torch.int32), finite.to(torch.int32)]
    if report is not None:
        parts += [
            report.chosen.view(torch.int32),
            report.top.contiguous().view(torch.int32).flatten(),
            report.top_ids.to(torch.int32).flatten(),
        ]
    return torch.cat(parts)


def unpack(packed: Packed, num_rows: int, shape: ReportShape) -> list[Sampled]:
    """The reverse of `pack`, as one `Sampled` a row."""
    tokens, finite = packed[:num_rows].tolist(), packed[num_rows : 2 * num_rows].tolist()
    logprobs = _unpack_report(packed[2 * num_rows :], shape)
    return [
        Sampled(token, logprobs.get(row)) if is_finite else Sampled(None)
        for row, (token, is_finite) in enumerate(zip(tokens, finite, strict=True))
    ]


def _unpack_report(packed: Packed, shape: ReportShape) -> dict[int, TokenLogprobs]:
    if not shape.rows:
        return {}
    num_rows, most = len(shape.rows), max(shape.counts)
    chosen, top, top_ids = np.split(packed, (num_rows, num_rows + num_rows * most))
    chosen_values = chosen.view(np.float32).tolist()
    top_values = top.view(np.float32).reshape(num_rows, most).tolist()
    ids = top_ids.reshape(num_rows, most).tolist()
    return {
        row: TokenLogprobs(value, tuple(zip(row_ids[:count], row_top[:count], strict=True)))
        for row, count, value, row_ids, row_top in zip(
            shape.rows, shape.counts, chosen_values, ids, top_values, strict=True
        )
    }


@dataclass(frozen=True, slots=True)
class LaunchedSample:
    """A step's choices on their way; implements `Launched`. `tokens` (R,) int64, on the device."""

    transfer: Transfer
    num_rows: int
    shape: ReportShape
    tokens: Tensor

    def collect(self) -> list[Sampled]:
        """Wait for the step; one `Sampled` per row, in order."""
        return unpack(self.transfer.wait(), self.num_rows, self.shape)
