"""The sampling of each row's next token from logits, without waiting for the device.

    logits -> finite? -> log-probabilities -> penalties -> biases -> bans -> any token left?
           -> constraints -> any token allowed? -> filters -> draw -> one copy to the host

If all rows need only a plain sample, one kernel does all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.sampling.plan import DevicePlan, Masks, Randomness, on_device
from engine.sampling.planner import Planner
from engine.sampling.results import NOT_ALLOWED, LaunchedSample, normalised, pack, report
from engine.sampling.tables import RULED_OUT, SlotTables
from engine.step import Bitmask, Row
from engine.transfers import HostArray, HostCopy, to_device
from kernels.ops import Ops

BITS = 8


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler for one model, with the device's operations."""

    planner: Planner
    ops: Ops
    tables: SlotTables

    @torch.inference_mode()
    def launch(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        inputs: Tensor,
        allowed: Sequence[Bitmask | None] = (),
    ) -> LaunchedSample:
        """Sample a token for each of `rows`. `logits` (R, V), contiguous, are overwritten.

        `inputs` (R,) int64 are the tokens at which the logits were computed. `allowed` are the
        masks of the rows with a constraint, in order. A row yields no token if one of its logits is
        not finite, or if its options exclude all tokens. A row that samples several tokens is in
        `rows` once for each of them.
        """
        draw = self.planner.plain(rows, are_masked=bool(allowed))
        if draw is None:
            return self._launch_planned(logits, rows, inputs, allowed)
        keys, temperature = to_device((draw.keys, draw.temperature), logits.device)
        tokens, finite = self.ops.sample(logits, temperature, keys)
        if allowed:
            return self.launch_masked(logits, rows, draw, allowed, tokens, finite.int())
        return LaunchedSample(HostCopy(pack(tokens, finite)), len(rows), None, tokens)

    @torch.inference_mode()
    def launch_masked(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        draw: Randomness[HostArray],
        allowed: Sequence[Bitmask | None],
        tokens: Tensor,
        finite: Tensor,
    ) -> LaunchedSample:
        """Sample the rows with masks again. `draw` has already sampled all rows without masks.

        Overwrite the results of `draw`: `tokens` (R,) int64 and `finite` (R,) int32. The host
        checks whether a mask allows any token, because the device is waiting for the host anyway.
        """
        host = self.planner.masks(rows, allowed)
        verdicts = np.where(host.words.any(axis=1), 1, NOT_ALLOWED).astype(np.int32)
        keys, heat = draw.keys[host.rows], draw.temperature[host.rows]
        arrays = (keys, heat, host.rows, host.words, verdicts)
        keys_of, heat_of, masked, words, verdict = to_device(arrays, logits.device)
        kept = logits.index_select(0, masked).masked_fill_(ruled_out(words, logits), RULED_OUT)
        chosen, _ = self.ops.sample(kept, heat_of, keys_of)
        tokens.index_copy_(0, masked, chosen)
        finite.index_copy_(0, masked, finite.index_select(0, masked) * verdict)
        return LaunchedSample(HostCopy(pack(tokens, finite)), len(rows), None, tokens)

    @torch.inference_mode()
    def warm_up(self, vocabulary: int, device: torch.device, dtype: torch.dtype) -> None:
        """Run filters and penalties once, so that no request waits for their compilation.

        Captured steps do not contain these kernels. Filters are run on logits of `dtype` and of
        float32, because penalties, biases, bans and masks convert logits to float32.
        """
        ones, first = torch.ones(1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
        seen = torch.zeros((1, vocabulary), dtype=torch.int32, device=device)
        logits = torch.zeros((1, vocabulary), device=device)
        self.ops.penalise(logits, first, first, seen, ones, ones, ones)
        for one in (dtype, torch.float32):
            logits = torch.zeros((1, vocabulary), dtype=one, device=device)
            self.ops.top_k_top_p(logits, first, ones, ones.long(), ones, -ones)
            self.ops.sample(logits, ones, torch.zeros((1, 2), dtype=torch.int32, device=device))

    def _launch_planned(
        self, logits: Tensor, rows: Sequence[Row], inputs: Tensor, allowed: Sequence[Bitmask | None]
    ) -> LaunchedSample:
        host_plan = self.planner.plan(rows, allowed)
        plan = on_device(host_plan, logits.device)
        finite = all_finite(logits)
        logprobs = None if plan.wanted is None else normalised(logits, plan.wanted)
        self.tables.take(plan.new, self.planner.params.banned, logits.device)
        if plan.penalties is not None:
            self.tables.count(plan.penalties, inputs)
        self.planner.launched(rows)
        if plan.penalties or plan.biases or plan.bans:
            logits = logits.float()
            self._adjust(logits, plan)
            finite &= leaves_a_token(logits)
        if plan.masks is not None:
            logits = logits.float()
            keep_allowed(logits, plan.masks)
            finite = torch.where(finite & ~leaves_a_token(logits), NOT_ALLOWED, finite.int())
        tokens = self._choose(logits, plan)
        reported: Sequence[Tensor] = ()
        if plan.wanted is not None and logprobs is not None:
            reported = report(logprobs, tokens, plan.wanted)
        packed = pack(tokens, finite, reported)
        return LaunchedSample(HostCopy(packed), len(rows), host_plan.wanted, tokens)

    def _adjust(self, logits: Tensor, plan: DevicePlan) -> None:
        if plan.penalties is not None:
            asked = plan.penalties
            strengths = asked.presence, asked.frequency, asked.repetition
            seen, places = self.tables.seen_by(asked)
            self.ops.penalise(logits, asked.rows, places, seen, *strengths)
        if plan.biases is not None:
            self.tables.add_biases(logits, plan.biases)
        if plan.bans is not None:
            self.tables.ban(logits, plan.bans)

    def _choose(self, logits: Tensor, plan: DevicePlan) -> Tensor:
        if plan.filters is not None:
            asked = plan.filters
            limits = asked.top_k, asked.top_p, asked.log_min_p
            self.ops.top_k_top_p(logits, asked.rows, asked.temperature, *limits)
        tokens, _ = self.ops.sample(logits, plan.draw.temperature, plan.draw.keys)
        return tokens


def keep_allowed(logits: Tensor, masks: Masks[Tensor]) -> None:
    """Set to -inf the logits (R, V) of tokens that the rows' masks forbid."""
    kept = logits[masks.rows].masked_fill_(ruled_out(masks.words, logits), RULED_OUT)
    logits.index_copy_(0, masks.rows, kept)


def ruled_out(words: Tensor, logits: Tensor) -> Tensor:
    """Return which tokens the masks `words` (K, W) int32 forbid, (K, V) bool.

    `logits` (R, V) give the size V. Each bit is expanded to a byte, because a byte is the smallest
    type that can be shifted.
    """
    bits = torch.arange(BITS, dtype=torch.uint8, device=logits.device)
    spread = words.view(torch.uint8)[:, :, None] >> bits & 1
    return spread.flatten(1)[:, : logits.shape[1]] == 0


def all_finite(logits: Tensor) -> Tensor:
    """Return, for each row of `logits` (R, V), whether all its numbers are finite, (R,) bool."""
    least, greatest = logits.aminmax(dim=-1)  # if any logit is NaN, both are NaN
    return least.isfinite() & greatest.isfinite()


def leaves_a_token(adjusted: Tensor) -> Tensor:
    """Return, for each row of `adjusted` (R, V), whether its largest logit is finite, (R,) bool.

    It is not finite if all tokens are excluded, or if any logit is infinite or NaN.
    """
    return adjusted.amax(dim=-1).isfinite()  # if any logit is NaN, the maximum is NaN
