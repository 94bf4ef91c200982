"""From logits to the next token of every row, without waiting for the device.

    logits -> finite? -> log-probabilities -> penalties -> biases -> bans -> a token left?
           -> draw -> one copy back

Where no row asks for more than a draw, one kernel does it all.

Knows: the order of these. Does not know: their formulas, or the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.sampler.adjust import edit, penalise
from engine.sampler.logprobs import normalised, report
from engine.sampler.plan import DevicePlan, Draw, FilteredDraw, HostPlan, on_device
from engine.sampler.planner import Planner
from engine.sampler.results import LaunchedSample, ReportShape, Transfer, pack
from engine.sequence import Sequence as TokenSequence
from engine.staging import to_device
from kernels.ops import DrawTokens, KeepLikeliest


@dataclass(frozen=True, slots=True)
class Sampler:
    """Chooses tokens for one model. `draw` and `keep_likeliest` are the ops of the device."""

    planner: Planner
    draw: DrawTokens
    keep_likeliest: KeepLikeliest

    @torch.inference_mode()
    def launch(
        self, logits: Tensor, sequences: Sequence[TokenSequence], inputs: Tensor
    ) -> LaunchedSample:
        """Choose a token for each of `sequences`, given `logits` (R, V), contiguous.

        `inputs` (R,) int64 are the tokens that the logits follow. Changes `logits`. A row with
        a logit that is not finite, or whose wishes leave none to choose, yields no token; it
        leaves the other rows as they are.
        """
        draw = self.planner.plain(sequences)
        if draw is not None:
            keys, temperature = to_device((draw.keys, draw.temperature), logits.device)
            tokens, finite = self.draw(logits, temperature, keys)
            packed = pack(tokens, finite, None)
            return LaunchedSample(Transfer(packed), len(sequences), ReportShape((), ()), tokens)
        return self._launch_planned(logits.float(), sequences, inputs)

    @torch.inference_mode()
    def warm_up(self, vocabulary: int, device: torch.device) -> None:
        """Use the filters once. Kernels are compiled at their first use, and no recorded step
        has any filters: the first request that wants some would wait, and all others with it.
        """
        ones = torch.ones(1, device=device)
        for limits_k in (False, True):
            logits = torch.zeros((1, vocabulary), device=device)
            self.keep_likeliest(logits, ones, ones.long(), ones, -ones, limits_k=limits_k)
            self.draw(logits, ones, torch.zeros((1, 2), dtype=torch.int32, device=device))

    def _launch_planned(
        self, logits: Tensor, sequences: Sequence[TokenSequence], inputs: Tensor
    ) -> LaunchedSample:
        host_plan = self.planner.plan(sequences)
        plan = on_device(host_plan, logits.device)
        finite = all_finite(logits)
        logprobs = None if plan.wanted is None else normalised(logits, plan.wanted)
        if plan.penalties is not None or plan.edits is not None:
            adjust(logits, plan, inputs)
            finite &= leaves_a_token(logits)
        tokens = self._choose(logits, plan)
        reported = (
            None
            if plan.wanted is None or logprobs is None
            else report(logprobs, tokens, plan.wanted)
        )
        packed = pack(tokens, finite, reported)
        shape = _report_shape(host_plan)
        return LaunchedSample(Transfer(packed), len(sequences), shape, tokens)

    def _choose(self, logits: Tensor, plan: DevicePlan) -> Tensor:
        """A token for every row of `logits` (R, V), (R,) int64."""
        choices: list[tuple[Tensor, Callable[[Tensor], Tensor]]] = []
        if plan.plain is not None:
            choices.append((plan.plain.rows, partial(self._drawn, how=plan.plain)))
        if plan.filtered is not None:
            among = partial(self._drawn_among, filtered=plan.filtered)
            choices.append((plan.filtered.draw.rows, among))
        if len(choices) == 1:
            return choices[0][1](logits)
        tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        for rows, choice in choices:
            tokens[rows] = choice(logits[rows])
        return tokens

    def _drawn(self, logits: Tensor, how: Draw[Tensor]) -> Tensor:
        tokens, _ = self.draw(logits, how.temperature, how.keys)
        return tokens

    def _drawn_among(self, logits: Tensor, filtered: FilteredDraw[Tensor]) -> Tensor:
        """Among those that the filters leave."""
        self.keep_likeliest(
            logits,
            filtered.draw.temperature,
            filtered.top_k,
            filtered.top_p,
            filtered.log_min_p,
            limits_k=filtered.limits_k,
        )
        return self._drawn(logits, filtered.draw)


def all_finite(logits: Tensor) -> Tensor:
    """(R,) bool: whether a row of `logits` (R, V) has neither NaN nor infinity."""
    least, greatest = logits.aminmax(dim=-1)  # both are NaN where any is
    return least.isfinite() & greatest.isfinite()


def leaves_a_token(adjusted: Tensor) -> Tensor:
    """(R,) bool: whether the greatest of a row of `adjusted` (R, V) is a number to go by.

    Tokens may be ruled out, or lowered without end; NaN and infinity are nobody's likeliest.
    """
    return adjusted.amax(dim=-1).isfinite()  # NaN where any is


def adjust(logits: Tensor, plan: DevicePlan, inputs: Tensor) -> None:
    """Apply penalties and edits to `logits` (R, V) in place."""
    if plan.penalties is not None:
        penalise(logits, plan.penalties, inputs)
    if plan.edits is not None:
        edit(logits, plan.edits)


def _report_shape(plan: HostPlan) -> ReportShape:
    if plan.wanted is None:
        return ReportShape((), ())
    return ReportShape(tuple(plan.wanted.rows.tolist()), plan.wanted.counts)
