"""The runner of steps. A step is: block moves, batch, forward pass, sampling.

The token sampled for a batch slot stays on the device, where the next step reads it. The next step
can therefore be launched before the host has the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.execution.batch import Batch, build_batch
from engine.execution.block_tables import BlockTables
from engine.execution.head_drafts import HeadStep, WithDrafts
from engine.execution.readings import LaunchedWithReadings, are_read, read
from engine.execution.rings import Rings
from engine.execution.row_fields import samples_of
from engine.execution.shared_prefixes import SharedPrefixes, Sharing
from engine.execution.verified_rows import by_token, share_by_token
from engine.models.forward.decoder import Decoder
from engine.models.forward.memories import StepMemory
from engine.sampling.sampler import Sampler
from engine.step import Bitmask, Forward, Launched, Row, Sampled, Step, count_decodes, has_drafts
from engine.transfers import HostCopy, record_event
from kernels.attention.decode.split_sizes import SplitSizes
from storage.move import Move, TokenCopy
from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StatePool, StepStates
from storage.pools.window_pool import StepWindows


class DeviceMover(Protocol):
    """An interface to moves of blocks within the device, on the compute stream."""

    def execute(self, moves: Sequence[Move]) -> None:
        """Copy the block of every move."""
        ...

    def copy_tokens(self, copies: Sequence[TokenCopy]) -> None:
        """Carry out every copy of tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """The runner of one model on one device.

    Implements `Runner`. `last_tokens` (batch slots or more,) int64 has the token last sampled for
    each batch slot.
    """

    decoder: Decoder
    sampler: Sampler
    pool: DevicePool
    mover: DeviceMover
    last_tokens: Tensor
    tables: BlockTables
    prefixes: SharedPrefixes | None = None  # None: every row reads its keys separately
    sizes: SplitSizes | None = None
    states: StatePool | None = None
    rings: Rings | None = None  # None: the KV of all attention layers is in `pool`

    def sharing(self, rows: Sequence[Row]) -> Sharing | None:
        """Group decode rows that should read a prefix together. Return None without groups."""
        if self.prefixes is None:
            return None
        decodes = rows[: count_decodes(rows)]
        sharing = self.prefixes.find(decodes, self.tables)
        if not has_drafts(decodes):
            return sharing
        return share_by_token(decodes, sharing, self.prefixes.rule)

    @torch.inference_mode()
    def launch(self, step: Step) -> Launched:
        """Start computing `step`. On CUDA the call returns before the device is done."""
        self.tables.update(step.rows)
        return self.compute(by_token(step), self.sharing(step.rows))

    def compute(self, step: Step, sharing: Sharing | None) -> Launched:
        """Compute a step from `by_token`. The tables must already have its new blocks."""
        if not step.rows:
            self.copy(step)
            return LaunchedWithoutOutput(record_event(self.last_tokens.device))
        forward = self.forward(step, sharing)
        return forward.sample() if forward.sampling else forward.skip()

    @torch.inference_mode()
    def launch_forward(self, step: Step) -> Forward:
        """Start computing `step` without the sampling."""
        self.tables.update(step.rows)
        return self.forward(by_token(step), self.sharing(step.rows))

    @torch.inference_mode()
    def forward(self, step: Step, sharing: Sharing | None) -> EagerForward:
        """Launch the forward pass of a step from `by_token`. The tables must have its blocks."""
        self.copy(step)
        if self.rings is not None:
            self.rings.enter(step.rows)
        pool, device = self.pool.layers, self.last_tokens.device
        size, sizes = self.pool.layout.block_size, self.sizes
        has_states = self.states is not None
        batch = build_batch(
            step.rows,
            self.tables,
            size,
            device,
            sharing,
            sizes,
            has_states=has_states,
            has_head=self.decoder.has_draft_head,
            rings=None if self.rings is None else self.rings.pool.shape,
        )
        batch.feed(self.last_tokens)
        states, head = self.states_of(batch), None
        given = batch.token_ids, batch.layout, pool
        if self.decoder.has_draft_head:
            whole = self.decoder.hidden(*given, None, states, batch.adapters)
            hidden, outputs = whole.index_select(0, batch.outputs), batch.outputs
            step_of_head = batch.layout, whole, batch.next_tokens, outputs, batch.token_ids
            head = HeadStep(self.decoder, pool, *step_of_head, batch.followed)
        else:
            hidden = self.decoder.hidden(*given, batch.outputs, states, batch.adapters)
        if self.rings is not None:
            self.rings.leave(step.rows)
        logits = self.decoder.logits_of(hidden)
        sampling = samples_of(step.rows)
        inputs = batch.token_ids.index_select(0, batch.outputs) if sampling else batch.outputs
        return EagerForward(
            self.sampler,
            self.last_tokens,
            logits,
            inputs,
            batch.output_slots,
            sampling,
            hidden if are_read(sampling) else None,
            head,
        )

    def copy(self, step: Step) -> None:
        """Launch the moves and copies of a step."""
        if step.moves:
            self.mover.execute(step.moves)
        if step.copies:
            self.mover.copy_tokens(step.copies)

    def states_of(self, batch: Batch) -> StepMemory:
        """Return the recurrent states or rings of a batch, or None if the model has neither."""
        if self.rings is not None and batch.windows is not None:
            return StepWindows(batch.windows, self.rings.pool.layers)
        if self.states is None or batch.state_rows is None:
            return None
        return StepStates(batch.state_rows, self.states.layers)


@dataclass(frozen=True, slots=True)
class EagerForward:
    """The logits of a forward pass that was launched eagerly.

    Implements `Forward`. `logits` (R, V) follow the tokens `inputs` (R,) int64. The sampled tokens
    are stored for the `batch_slots` (R,) int64.
    """

    sampler: Sampler
    last_tokens: Tensor
    logits: Tensor
    inputs: Tensor
    batch_slots: Tensor
    sampling: Sequence[Row]  # R rows, one for each sampled token
    hidden: Tensor | None = None  # hidden states (R, H) of these rows, if any row reads them
    head: HeadStep | None = None

    @torch.inference_mode()
    def sample(self, allowed: Sequence[Bitmask | None] = ()) -> Launched:
        """Launch the sampling, and store the sampled tokens for the next step."""
        hidden, rows = self.hidden, self.sampling
        # read now, because sampling changes the logits
        readings = None if hidden is None else read(hidden, self.logits, rows)
        sampled = self.sampler.launch(self.logits, rows, self.inputs, allowed)
        # For a row with several samples, any of them may be stored here: the next step does not
        # read it, because the sequence waits until all samples are on the host.
        self.last_tokens.index_copy_(0, self.batch_slots, sampled.tokens)
        launched: Launched = sampled
        if readings is not None:
            launched = LaunchedWithReadings(launched, readings)
        if self.head is not None:
            launched = WithDrafts(launched, HostCopy(self.head.draft(sampled.tokens)))
        return launched

    @torch.inference_mode()
    def skip(self) -> Launched:
        """Sample nothing."""
        if self.head is not None:
            self.head.write()
        return LaunchedWithoutOutput(record_event(self.last_tokens.device))


@dataclass(frozen=True, slots=True)
class LaunchedWithoutOutput:
    """A step without sampled tokens. Implements `Launched`."""

    done: torch.cuda.Event | None

    def collect(self) -> list[Sampled]:
        """Wait for the step, which has no samples."""
        if self.done is not None:
            self.done.synchronize()
        return []
