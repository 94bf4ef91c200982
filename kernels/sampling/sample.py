"""The sampling of each row's next token from its logits.

    token = argmax_v logit_v / temperature - log_exponential(key, v)      the first of equals
    token = argmax_v logit_v                                              where temperature is 0

The method is the Gumbel-max trick (`noise`). A second result is whether all logits of a row are
finite. If they are not, the row's token is an arbitrary id of the vocabulary. All numbers are
computed in float32. The first launch finds the best token of each part of the vocabulary. The
second launch finds the best of these tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.sampling.noise import log_exponential

_PART = 2048
_CHUNK = 1024


def reference(logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (R,) int64, and whether all logits of each row are finite, (R,) bool.

    Plain PyTorch. logits (R, V) are contiguous, of any float dtype. temperature is (R,) float32.
    keys are (R, 2) int32.
    """
    least, greatest = logits.aminmax(dim=-1)  # both are NaN if any logit is NaN
    finite = least.isfinite() & greatest.isfinite()
    best = logits.argmax(-1)
    random_rows = temperature > 0
    if bool(random_rows.any()):
        token_ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
        scores = logits[random_rows].float() / temperature[random_rows, None]
        scores -= log_exponential(keys[random_rows], token_ids)
        best[random_rows] = scores.argmax(-1)
    return best, finite


@triton.jit
def _log_exponential(first: tl.tensor, second: tl.tensor, token: tl.tensor) -> tl.tensor:
    """Compute `kernels.sampling.noise.log_exponential`. log(1 - u) is exact for small u."""
    x = first.to(tl.uint32, bitcast=True) ^ token.to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ second.to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    uniform = ((x & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 2147483648.0)
    uniform = tl.minimum(uniform, 1.0 - 1.0 / 16777216.0)
    rest = 1.0 - uniform
    log_rest = tl.where(
        rest == 1.0, -uniform, tl.log(rest) * uniform / (1.0 - rest + (rest == 1.0))
    )
    return tl.log(-log_rest)


@triton.jit
def _first_best(score: tl.tensor, token: tl.tensor) -> tl.tensor:
    """Find the greatest score and the lowest token id that has it. No score may be NaN."""
    best = tl.max(score, axis=0)
    return best, tl.min(tl.where(score == best, token, 2147483647), axis=0)


@triton.jit
def _part_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    keys: tl.tensor,
    part_score: tl.tensor,
    part_token: tl.tensor,
    part_finite: tl.tensor,
    V: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    first, second = tl.load(keys + row * 2), tl.load(keys + row * 2 + 1)
    start = part * PART
    column = tl.arange(0, CHUNK)
    best = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
    best_token = tl.minimum(start + column, V - 1)
    broken = tl.zeros([CHUNK], dtype=tl.int32)
    for offset in tl.range(0, PART, CHUNK):
        token = start + offset + column
        inside = token < V
        score = tl.load(logits + row * V + token, mask=inside, other=0.0).to(tl.float32)
        broken |= (tl.abs(score) < float("inf")).to(tl.int32) ^ 1
        if heat > 0:
            score = score / heat - _log_exponential(first, second, token)
        better = inside & (score > best)
        best = tl.where(better, score, best)
        best_token = tl.where(better, token, best_token)
    score, token = _first_best(best, best_token)
    place = row * tl.num_programs(1) + part
    tl.store(part_score + place, score)
    tl.store(part_token + place, token)
    tl.store(part_finite + place, 1 - tl.max(broken, axis=0))


@triton.jit
def _whole_kernel(
    part_score: tl.tensor,
    part_token: tl.tensor,
    part_finite: tl.tensor,
    tokens: tl.tensor,
    finite: tl.tensor,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS_PADDED)
    inside = part < PARTS
    place = row * PARTS + part
    score = tl.load(part_score + place, mask=inside, other=float("-inf"))
    token = tl.load(part_token + place, mask=inside, other=2147483647)
    sound = tl.load(part_finite + place, mask=inside, other=1)
    _, best = _first_best(score, token)
    tl.store(tokens + row, best.to(tl.int64))
    tl.store(finite + row, tl.min(sound, axis=0).to(tl.int1))


def launch(logits: Tensor, temperature: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `reference` on the device."""
    rows, vocabulary = logits.shape
    parts, device = cdiv(vocabulary, _PART), logits.device
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    finite = torch.empty(rows, dtype=torch.bool, device=device)
    if not rows:
        return tokens, finite
    part_score = torch.empty((rows, parts), dtype=torch.float32, device=device)
    part_token = torch.empty((rows, parts), dtype=torch.int32, device=device)
    part_finite = torch.empty((rows, parts), dtype=torch.int32, device=device)
    of_parts = (part_score, part_token, part_finite)
    _part_kernel[(rows, parts)](
        logits, temperature, keys, *of_parts, V=vocabulary, PART=_PART, CHUNK=_CHUNK, num_warps=4
    )
    _whole_kernel[(rows,)](
        *of_parts, tokens, finite, PARTS=parts, PARTS_PADDED=next_power_of_2(parts), num_warps=1
    )
    return tokens, finite
