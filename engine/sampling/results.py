"""The transfer of a step's samples and log probabilities to the host, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.link.event_messages import TokenLogprobs
from engine.sampling.plan import SAMPLED, WantedLogprobs
from engine.step import Sampled
from engine.transfers import HostArray, HostCopy

Packed = npt.NDArray[np.int32]
NOT_ALLOWED = 2  # value of the flag `finite` if logits are finite but no token is allowed


def normalised(logits: Tensor, wanted: WantedLogprobs[Tensor]) -> Tensor:
    """Compute log probabilities (L, V) float32 of the wanted rows, from unchanged logits."""
    return logits[wanted.rows].float().log_softmax(-1)


def report(logprobs: Tensor, tokens: Tensor, wanted: WantedLogprobs[Tensor]) -> tuple[Tensor, ...]:
    """Select the values to report from `logprobs` (L, V). `tokens` (R,) are the sampled tokens.

    Return int32 tensors, in which floats are stored as bits: the log probabilities of the reported
    tokens (L,), those of the M most likely tokens (L, M), and their ids (L, M). With
    `wanted.given`, the ranks (L,) of the reported tokens follow.
    """
    told, given = tokens[wanted.rows], wanted.given
    if given is not None:
        told = torch.where(given == SAMPLED, told, given)
    chosen = logprobs.gather(1, told[:, None])
    top, top_ids = logprobs.topk(wanted.most, dim=-1)
    parts = (chosen[:, 0].view(torch.int32), top.contiguous().view(torch.int32), top_ids.int())
    return parts if given is None else (*parts, (logprobs > chosen).sum(-1, dtype=torch.int32) + 1)


def pack(tokens: Tensor, finite: Tensor, reported: Sequence[Tensor] = ()) -> Tensor:
    """Concatenate tokens (R), finite (R) and the reports into one int32 tensor.

    `finite` is bool, or int if it may be `NOT_ALLOWED`.
    """
    parts = (tokens.to(torch.int32), finite.to(torch.int32), *reported)
    return torch.cat([part.flatten() for part in parts])


def unpack(
    packed: Packed, num_rows: int, wanted: WantedLogprobs[HostArray] | None
) -> list[Sampled]:
    """Unpack a result of `pack`, copied to the host, into one `Sampled` per row."""
    tokens, finite = packed[:num_rows].tolist(), packed[num_rows : 2 * num_rows].tolist()
    logprobs = {} if wanted is None else _unpack_report(packed[2 * num_rows :], wanted)
    return [
        Sampled(token, logprobs.get(row))
        if is_finite == 1
        else Sampled(None, None, is_finite == NOT_ALLOWED)
        for row, (token, is_finite) in enumerate(zip(tokens, finite, strict=True))
    ]


def _unpack_report(packed: Packed, wanted: WantedLogprobs[HostArray]) -> dict[int, TokenLogprobs]:
    """Return the report of each row. The most likely tokens stay packed as bytes."""
    rows, width = wanted.rows.tolist(), 4 * wanted.most
    num_rows = len(rows)
    chosen = packed[:num_rows].view(np.float32).tolist()
    reached = num_rows * (1 + 2 * wanted.most)
    top, top_ids = (part.tobytes() for part in np.split(packed[num_rows:reached], 2))
    starts = range(0, num_rows * width, width) if width else [0] * num_rows
    return {
        row: TokenLogprobs(
            value, top_ids[start : start + 4 * count], top[start : start + 4 * count], rank
        )
        for row, count, value, start, rank in zip(
            rows, wanted.counts, chosen, starts, _ranks(packed[reached:], wanted), strict=True
        )
    }


def _ranks(packed: Packed, wanted: WantedLogprobs[HostArray]) -> list[int | None]:
    if wanted.given is None:
        return [None] * len(wanted.counts)
    is_given = (wanted.given != SAMPLED).tolist()
    return [rank if given else None for rank, given in zip(packed.tolist(), is_given, strict=True)]


@dataclass(frozen=True, slots=True)
class LaunchedSample:
    """The samples of a step, being copied to the host.

    Implements `Launched`. `tokens` (R,) int64 are on the device.
    """

    transfer: HostCopy
    num_rows: int
    wanted: WantedLogprobs[HostArray] | None
    tokens: Tensor

    def collect(self) -> list[Sampled]:
        """Wait for the step. Return one `Sampled` per row, in order."""
        return unpack(self.transfer.wait(), self.num_rows, self.wanted)
