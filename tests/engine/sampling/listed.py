"""Adjustments of logits by lists that are rebuilt for each step.

They are the reference for `tables` and `kernels.sampling.penalise`, since they hold no state
between steps.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from engine.sequences.sequence import Sequence


def adjusted(
    logits: Tensor, sequences: SequenceOf[Sequence], inputs: Tensor, eos_token_ids: tuple[int, ...]
) -> Tensor:
    """Return the logits (R, V) after penalties, biases and bans; `inputs` (R,): the last tokens."""
    left = logits.clone()
    for row, sequence in enumerate(sequences):
        _penalise(left[row], sequence, int(inputs[row]))
        _bias(left[row], sequence)
        for token_id in _banned(sequence, eos_token_ids, left.shape[1]):
            left[row, token_id] = -torch.inf
    return left


def _penalise(logits: Tensor, sequence: Sequence, last: int) -> None:
    wish = sequence.sampling
    output = sequence.output_ids.tolist() + [last] * sequence.num_pending
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(logits)).float()
    there = counts > 0
    there[torch.from_numpy(sequence.tokens[: sequence.prompt_len]).long()] = True
    factor = torch.tensor(wish.repetition_penalty)
    lowered = torch.where(logits > 0, logits / factor, logits * factor)
    logits.copy_(torch.where(there, lowered, logits))
    logits -= torch.tensor(wish.frequency_penalty) * counts
    logits -= torch.tensor(wish.presence_penalty) * (counts > 0)


def _bias(logits: Tensor, sequence: Sequence) -> None:
    bias = sequence.sampling.logit_bias
    if bias.token_ids:
        ids = torch.frombuffer(bytearray(bias.token_ids), dtype=torch.int32).long()
        logits[ids] += torch.frombuffer(bytearray(bias.values), dtype=torch.float32)


def _banned(sequence: Sequence, eos_token_ids: tuple[int, ...], vocab_size: int) -> set[int]:
    wish = sequence.sampling
    if sequence.length - sequence.prompt_len >= wish.min_tokens:
        return set()
    ending = {*wish.stop_token_ids, *(() if wish.ignore_eos else eos_token_ids)}
    return {token_id for token_id in ending if token_id < vocab_size}
