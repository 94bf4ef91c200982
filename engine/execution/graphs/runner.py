"""A runner that replays captured graphs. Steps that fit no bucket run eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.steps import CapturedStep, CapturedSteps
from engine.execution.head_drafts import with_drafts
from engine.execution.readings import are_read
from engine.execution.row_fields import more_samples, samples_of
from engine.execution.runner import LaunchedWithoutOutput, ModelRunner
from engine.execution.shared_prefixes import Sharing
from engine.execution.verified_rows import by_token
from engine.sampling.plan import Randomness
from engine.step import Bitmask, Forward, Launched, Row, Sampled, Step, count_decodes
from engine.transfers import HostArray, HostCopy, record_event


@dataclass(frozen=True, slots=True)
class GraphRunner:
    """A runner that replays small steps and gives larger steps to `eager`. Implements `Runner`."""

    eager: ModelRunner
    steps: CapturedSteps

    @torch.inference_mode()
    def launch(self, step: Step) -> Launched:
        """Start computing `step`, and return before the device is done."""
        step, sharing, captured = self._prepare(step)
        if captured is None:
            return self.eager.compute(step, sharing)
        return self._replay(captured, step, sharing)

    @torch.inference_mode()
    def launch_forward(self, step: Step) -> Forward:
        """Start computing `step` without the sampling."""
        step, sharing, captured = self._prepare(step)
        if captured is None:
            return self.eager.forward(step, sharing)
        draw = self.eager.sampler.planner.plain(samples_of(step.rows), are_masked=True)
        return self._forward(captured, step, draw, sharing)

    def _prepare(self, step: Step) -> tuple[Step, Sharing | None, CapturedStep | None]:
        """Return the step from `by_token`, its shared reads, and the graph that fits, if any."""
        self.eager.tables.update(step.rows)
        sharing = self.eager.sharing(step.rows)
        step = by_token(step)
        return step, sharing, self._find(step, sharing)

    def _find(self, step: Step, sharing: Sharing | None) -> CapturedStep | None:
        if not step.rows or are_read(step.rows):  # a graph does not output hidden states
            return None
        decodes = count_decodes(step.rows)
        more = more_samples(step.rows)
        needed = GraphBucket(
            decodes, step.num_tokens - decodes, len(step.rows) - decodes, more_samples=more
        )
        together = (
            self.steps.find(replace(needed, group_rows=sharing.most_rows)) if sharing else None
        )
        return together or self.steps.find(needed)

    def _replay(self, captured: CapturedStep, step: Step, sharing: Sharing | None) -> Launched:
        sampling = samples_of(step.rows)
        draw = self.eager.sampler.planner.plain(sampling)
        forward = self._forward(captured, step, draw, sharing)
        if not sampling:
            return forward.skip()
        if draw is None:
            return forward.sample()
        return LaunchedReplay(HostCopy(captured.packed), len(sampling))

    def _forward(
        self,
        captured: CapturedStep,
        step: Step,
        draw: Randomness[HostArray] | None,
        sharing: Sharing | None,
    ) -> ReplayedForward:
        self.eager.copy(step)
        shares, rings = captured.inputs.bucket.group_rows > 0, self.eager.rings
        if rings is not None:
            rings.enter(step.rows)
        captured.inputs.fill(step.rows, draw, sharing if shares else None)
        captured.captured.replay()
        if rings is not None:
            rings.leave(step.rows)
        return ReplayedForward(self.eager, captured, samples_of(step.rows), draw)


@dataclass(frozen=True, slots=True)
class ReplayedForward:
    """The logits of a replay, valid until the next replay. Implements `Forward`."""

    eager: ModelRunner
    step: CapturedStep
    sampling: Sequence[Row]
    # None: the graph does not support some row's sampling parameters.
    draw: Randomness[HostArray] | None

    @torch.inference_mode()
    def sample(self, allowed: Sequence[Bitmask | None] = ()) -> Launched:
        """Sample from the captured logits with each row's sampling parameters.

        If the graph supports all parameters but masks, only the rows with a mask are sampled again.
        """
        step, count, sampler = self.step, len(self.sampling), self.eager.sampler
        logits = step.logits[:count]
        if self.draw is None:
            inputs = step.sampled_from[:count]
            launched = sampler.launch(logits, self.sampling, inputs, allowed)
        else:
            tokens, finite = step.packed[0, :count].long(), step.packed[1, :count]
            launched = sampler.launch_masked(
                logits, self.sampling, self.draw, allowed, tokens, finite
            )
        batch_slots = step.inputs.field("output_slots")[:count].long()
        self.eager.last_tokens.index_copy_(0, batch_slots, launched.tokens)
        return launched

    def skip(self) -> Launched:
        """Sample nothing."""
        return LaunchedWithoutOutput(record_event(self.eager.last_tokens.device))


@dataclass(frozen=True, slots=True)
class LaunchedReplay:
    """The samples of a replay, being copied to the host. Implements `Launched`."""

    transfer: HostCopy
    num_samples: int

    def collect(self) -> list[Sampled]:
        """Wait for the step. Return one `Sampled` per row, in order."""
        tokens, finite, *drafted = self.transfer.wait()[:, : self.num_samples].tolist()
        sampled = [
            Sampled(token if is_finite else None)
            for token, is_finite in zip(tokens, finite, strict=True)
        ]
        return with_drafts(sampled, drafted) if drafted else sampled
