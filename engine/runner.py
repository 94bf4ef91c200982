"""Computes steps: moves, batch, forward pass, sampling.

The token sampled for a seat stays on the device, where the next step finds it: that step can be
launched before the token was collected.

Knows: in which order these go to the device, and that nothing here waits for it. Does not know:
why a step has the rows it has, or what becomes of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import build_batch, count_decodes
from engine.device import mark
from engine.model.decoder import Decoder
from engine.sampler.sampler import Sampler
from engine.shared_prefixes import SharedPrefixes, Sharing
from engine.step import Launched, Row, Sampled, Step
from kernels.unit_sizes import UnitSizes
from storage.device_pool import DevicePool
from storage.move import Move


class Mover(Protocol):
    """Executes moves within the device, on the compute stream, before what is launched next."""

    def execute(self, moves: Sequence[Move]) -> None:
        """Copy every move's block."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """The runner of one model on one device; implements `Runner`.

    `last_tokens` (seats or more,) int64: the token last sampled for each seat.
    """

    decoder: Decoder
    sampler: Sampler
    pool: DevicePool
    mover: Mover
    last_tokens: Tensor
    prefixes: SharedPrefixes | None = None  # None: every row reads its keys by itself
    sizes: UnitSizes | None = None  # None: no row's keys are cut

    def sharing(self, rows: Sequence[Row]) -> Sharing | None:
        """How the decode rows of a step are to lie; None where each reads by itself."""
        return None if self.prefixes is None else self.prefixes.find(rows[: count_decodes(rows)])

    @torch.inference_mode()
    def launch(self, step: Step) -> Launched:
        """Start computing `step`; on CUDA this returns before the device is done."""
        if step.moves:
            self.mover.execute(step.moves)
        pool = self.pool.tensor
        if not step.rows:
            return LaunchedWithoutOutput(mark(pool.device))
        sharing = self.sharing(step.rows)
        batch = build_batch(step.rows, pool.shape[4], pool.device, sharing, self.sizes)
        batch.feed(self.last_tokens)
        logits = self.decoder.logits(batch.token_ids, batch.layout, pool, batch.outputs)
        sampling = [row.sequence for row in step.rows if row.samples]
        if not sampling:
            return LaunchedWithoutOutput(mark(pool.device))
        inputs = batch.token_ids.index_select(0, batch.outputs)
        launched = self.sampler.launch(logits, sampling, inputs)
        self.last_tokens.index_copy_(0, batch.output_seats, launched.tokens)
        return launched


@dataclass(frozen=True, slots=True)
class LaunchedWithoutOutput:
    """A step in which no row samples; implements `Launched`."""

    done: torch.cuda.Event | None

    def collect(self) -> list[Sampled]:
        """Wait for the step, which yields nothing."""
        if self.done is not None:
            self.done.synchronize()
        return []
