"""Log-probabilities of what was chosen and of the likeliest, from the raw logits.

Knows: log-softmax in float32. Does not know: temperature, penalties or what they changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.sampler.plan import Wanted


@dataclass(frozen=True, slots=True)
class Report:
    """Of L rows, on the device: `chosen` (L,) and `top` (L, M) float32, `top_ids` (L, M) int64."""

    chosen: Tensor
    top: Tensor
    top_ids: Tensor


def normalised(logits: Tensor, wanted: Wanted[Tensor]) -> Tensor:
    """Natural log-probabilities of the wanted rows, (L, V); a copy that later edits spare."""
    return logits[wanted.rows].log_softmax(-1)


def report(logprobs: Tensor, tokens: Tensor, wanted: Wanted[Tensor]) -> Report:
    """What to tell of `logprobs` (L, V), given the chosen `tokens` (R,) of all rows."""
    chosen = logprobs.gather(1, tokens[wanted.rows][:, None])[:, 0]
    top, top_ids = logprobs.topk(wanted.most, dim=-1)
    return Report(chosen, top, top_ids)
