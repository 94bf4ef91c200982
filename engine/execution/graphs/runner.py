"""A runner that replays captured graphs, and gives steps that fit no bucket to the eager runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.execution.batch import more_samples, samples_of
from engine.execution.graphs.inputs import GraphBucket
from engine.execution.graphs.steps import CapturedStep, CapturedSteps
from engine.execution.runner import LaunchedWithoutOutput, ModelRunner
from engine.execution.shared_prefixes import Sharing
from engine.sampling.results import HostCopy
from engine.startup.device import mark
from engine.step import Launched, Row, Sampled, Step, count_decodes


@dataclass(frozen=True, slots=True)
class GraphRunner:
    """Small steps by replay, the others by `eager`; implements `Runner`."""

    eager: ModelRunner
    steps: CapturedSteps

    @torch.inference_mode()
    def launch(self, step: Step) -> Launched:
        """Start computing `step`; this returns before the device is done."""
        self.eager.tables.update(step.rows)
        sharing = self.eager.sharing(step.rows)
        captured = self._find(step, sharing)
        if captured is None:
            return self.eager.compute(step, sharing)
        if step.moves:
            self.eager.mover.execute(step.moves)
        return self._replay(
            captured, step.rows, sharing if captured.inputs.bucket.group_rows else None
        )

    def _find(self, step: Step, sharing: Sharing | None) -> CapturedStep | None:
        """The bucket for a step; one that shares where there is one and sharing pays."""
        if not step.rows:
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

    def _replay(self, step: CapturedStep, rows: Sequence[Row], sharing: Sharing | None) -> Launched:
        sampling = samples_of(rows)
        draw = self.eager.sampler.planner.plain(sampling)
        step.inputs.fill(rows, draw, sharing)
        step.captured.replay()
        if not sampling:
            return LaunchedWithoutOutput(mark(self.eager.last_tokens.device))
        if draw is None:
            return self._sample(step, sampling)
        return LaunchedReplay(HostCopy(step.packed), len(sampling))

    def _sample(self, step: CapturedStep, sampling: Sequence[Row]) -> Launched:
        """Sample again from the captured logits, by the rows' sampling parameters."""
        count = len(sampling)
        launched = self.eager.sampler.launch(
            step.logits[:count], sampling, step.sampled_from[:count]
        )
        batch_slots = step.inputs.field("output_slots")[:count].long()
        self.eager.last_tokens.index_copy_(0, batch_slots, launched.tokens)
        return launched


@dataclass(frozen=True, slots=True)
class LaunchedReplay:
    """The samples of a replay, being copied to the host; implements `Launched`."""

    transfer: HostCopy
    num_samples: int

    def collect(self) -> list[Sampled]:
        """Wait for the step; each `Sampled` in row order."""
        tokens, finite = self.transfer.wait()[:, : self.num_samples].tolist()
        return [
            Sampled(token if is_finite else None)
            for token, is_finite in zip(tokens, finite, strict=True)
        ]
