"""Changes logits in place: penalties for tokens already there, biases, and tokens ruled out.

Knows: the formulas. Does not know: where the numbers come from (`plan`), or what follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampler.plan import Edits, Penalties

RULED_OUT = float("-inf")


def penalise(logits: Tensor, penalties: Penalties[Tensor], inputs: Tensor) -> None:
    """Lower the logits (R, V) of tokens that a row has already; its last one is in `inputs` (R,).

    A token in prompt or output: its logit is divided by `repetition` where positive, multiplied
    where negative. A token n > 0 times in the output: `presence` + n x `frequency` off.
    """
    chosen = logits[penalties.rows]
    last = inputs[penalties.rows][penalties.pending]
    pending_index = penalties.pending * logits.shape[1] + last
    counts = _counts(chosen, torch.cat((penalties.output_index, pending_index)))
    there = counts + _counts(chosen, penalties.prompt_index) > 0
    repetition = penalties.repetition[:, None]
    lowered = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where(there, lowered, chosen)
    chosen -= penalties.frequency[:, None] * counts
    chosen -= penalties.presence[:, None] * (counts > 0)
    logits[penalties.rows] = chosen


def _counts(like: Tensor, flat_index: Tensor) -> Tensor:
    """How often each flat index occurs, in the shape of `like`."""
    counts = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    ones = torch.ones(1, dtype=torch.float32, device=like.device).expand(flat_index.shape)
    return counts.scatter_add_(0, flat_index, ones).view(like.shape)


def edit(logits: Tensor, edits: Edits[Tensor]) -> None:
    """Add biases, then rule tokens out; `logits` (R, V) contiguous."""
    flat = logits.view(-1)
    flat[edits.bias_index] += edits.bias
    flat.index_fill_(0, edits.banned_index, RULED_OUT)
