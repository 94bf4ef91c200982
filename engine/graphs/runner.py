"""A runner that replays recorded steps, and leaves steps that fit none to the eager runner.

Knows: which steps fit, and what follows a replay. Does not know: how a step is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.batch import count_decodes
from engine.device import mark
from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room
from engine.graphs.steps import RecordedStep, RecordedSteps
from engine.runner import LaunchedWithoutOutput, ModelRunner
from engine.sampler.results import Transfer
from engine.sequence import Sequence as TokenSequence
from engine.shared_prefixes import Sharing
from engine.step import Launched, Row, Sampled, Step


@dataclass(frozen=True, slots=True)
class GraphRunner:
    """Small steps by replay, the others by `eager`; implements `Runner`."""

    eager: ModelRunner
    tables: BlockTables
    steps: RecordedSteps

    @torch.inference_mode()
    def launch(self, step: Step) -> Launched:
        """Start computing `step`; this returns before the device is done."""
        sharing = self.eager.sharing(step.rows)
        recorded = self._find(step, sharing)
        if recorded is None:
            return self.eager.launch(step)
        if step.moves:
            self.eager.mover.execute(step.moves)
        self.tables.update(step.rows)
        return self._replay(
            recorded, step.rows, sharing if recorded.inputs.room.group_rows else None
        )

    def _find(self, step: Step, sharing: Sharing | None) -> RecordedStep | None:
        """The room for a step; one that shares where there is one and sharing pays."""
        if not step.rows:
            return None
        decodes = count_decodes(step.rows)
        needed = Room(decodes, step.num_tokens - decodes, len(step.rows) - decodes)
        together = (
            self.steps.find(replace(needed, group_rows=sharing.most_rows)) if sharing else None
        )
        return together or self.steps.find(needed)

    def _replay(self, step: RecordedStep, rows: Sequence[Row], sharing: Sharing | None) -> Launched:
        sampling = [row.sequence for row in rows if row.samples]
        draw = self.eager.sampler.planner.plain(sampling)
        step.inputs.fill(rows, draw, sharing)
        step.recorded.replay()
        if not sampling:
            return LaunchedWithoutOutput(mark(self.eager.last_tokens.device))
        if draw is None:
            return self._sample(step, sampling)
        return LaunchedReplay(Transfer(step.packed), len(sampling))

    def _sample(self, step: RecordedStep, sampling: Sequence[TokenSequence]) -> Launched:
        """Sample again from the recorded logits, as the rows' sampling parameters ask."""
        count = len(sampling)
        launched = self.eager.sampler.launch(
            step.logits[:count], sampling, step.sampled_from[:count]
        )
        seats = step.inputs.field("output_seats")[:count].long()
        self.eager.last_tokens.index_copy_(0, seats, launched.tokens)
        return launched


@dataclass(frozen=True, slots=True)
class LaunchedReplay:
    """What a replay drew, on its way; implements `Launched`."""

    transfer: Transfer
    num_rows: int

    def collect(self) -> list[Sampled]:
        """Wait for the step; one `Sampled` per row that samples, in order."""
        tokens, finite = self.transfer.wait()[:, : self.num_rows].tolist()
        return [
            Sampled(token if is_finite else None)
            for token, is_finite in zip(tokens, finite, strict=True)
        ]
