"""The captured graphs of one model: one graph for each bucket (`buckets.py`).

A step is replayed in the smallest bucket that holds it. One launch computes everything from the
embedding to the sampled tokens. If the graph does not support a row's sampling parameters, the
sampler runs separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.execution.further_drafts import Followed
from engine.execution.graphs.block_tables import DeviceTables
from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.buckets import all_buckets
from engine.execution.graphs.capture import Capture, Captured, Launches
from engine.execution.graphs.inputs import StepInputs
from engine.execution.head_drafts import HeadStep, NextTokens
from engine.execution.rings import RingTables
from engine.models.forward.decoder import Decoder
from engine.models.forward.memories import StepMemory
from engine.models.forward.shortened_decoder import shortened
from kernels.attention.batch_layout import BatchLayout, SharedPrefix, no_arrivals
from kernels.attention.decode.split_sizes import split_sizes
from kernels.recurrence.state_rows import StateRows
from storage.pools.state_pool import LayerState, StepStates
from storage.pools.window_pool import StepWindows, WindowPool


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """The decoder and tensors that all captured graphs use.

    `last_tokens` (batch slots + 1,) int64 has the token last sampled in each batch slot. Its last
    entry is for padding.
    """

    decoder: Decoder
    pool: tuple[Tensor, ...]
    last_tokens: Tensor
    tables: DeviceTables
    states: tuple[LayerState, ...] = ()
    rings: WindowPool | None = None  # None: the KV of all attention layers is in `pool`


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """The graph of one bucket, with its inputs and outputs."""

    inputs: StepInputs
    captured: Captured

    @property
    def logits(self) -> Tensor:
        """The logits (samples, V) in the model's dtype."""
        return self.captured.outputs[0]

    @property
    def packed(self) -> Tensor:
        """The sampled tokens, then flags for finite logits, (2, samples) int32.

        With a draft head, the tensor has further rows: the drafts that `HeadStep.draft` returns.
        """
        return self.captured.outputs[1]

    @property
    def sampled_from(self) -> Tensor:
        """The last input token before each sample, (samples,) int64."""
        return self.captured.outputs[2]


class CapturedSteps:
    """The captured graphs of all buckets, the largest first."""

    def __init__(
        self, machine: CaptureContext, capture: Capture, *, max_tokens: int, group_rows: int = 0
    ) -> None:
        """Capture steps of up to `max_tokens` tokens. The decodes of mixed steps do not count.

        With `group_rows`, also capture steps whose decodes share prefixes in groups of up to
        `group_rows`.
        """
        self._steps: dict[tuple[int, bool], list[CapturedStep]] = defaultdict(list)
        buckets = all_buckets(machine.tables.nobody, max_tokens, group_rows)
        trial = replace(machine, decoder=shortened(machine.decoder))
        for inputs in inputs_of(machine, sorted(buckets, key=_size, reverse=True)):
            captured = capture.record(_launches(trial, inputs), _launches(machine, inputs))
            self._steps[_kind(inputs.bucket)].insert(0, CapturedStep(inputs, captured))

    def find(self, needed: GraphBucket) -> CapturedStep | None:
        """Find the smallest captured step that holds `needed`, or return None."""
        steps = self._steps[_kind(needed)]
        return next((step for step in steps if step.inputs.bucket.holds(needed)), None)

    def drop(self) -> None:
        """Free all graphs.

        The caller must drop the graphs before it closes the group of ranks, because the graphs
        contain the group's collectives.
        """
        for steps in self._steps.values():
            for step in steps:
                step.captured.drop()


def inputs_of(machine: CaptureContext, buckets: Sequence[GraphBucket]) -> Iterator[StepInputs]:
    """Yield the inputs of each bucket, filled with padding. All inputs are views of one tensor."""
    if machine.decoder.num_slots:
        buckets = [replace(bucket, has_adapters=True) for bucket in buckets]
    buckets = [replace(one, has_head=machine.decoder.has_draft_head) for one in buckets]
    rings = None if machine.rings is None else machine.rings.shape
    has_rings, has_states = rings is not None, bool(machine.states)
    buckets = [replace(one, has_rings=has_rings, has_states=has_states) for one in buckets]
    total, device = max((bucket.total for bucket in buckets), default=0), machine.last_tokens.device
    flat = torch.zeros(total, dtype=torch.int32, device=device)
    block_size = machine.pool[0].shape[3]
    sizes = split_sizes(machine.pool[machine.decoder.whole_context])
    for bucket in buckets:
        yield StepInputs(bucket, flat, machine.tables, block_size, sizes, rings)


def _kind(bucket: GraphBucket) -> tuple[int, bool]:
    return bucket.group_rows, bucket.num_new > 0


def _size(bucket: GraphBucket) -> tuple[int, int]:
    return bucket.num_tokens, bucket.num_rows


def _launches(machine: CaptureContext, inputs: StepInputs) -> Launches:
    @torch.inference_mode()
    def launches() -> tuple[Tensor, ...]:
        return compute_step(machine, inputs)

    return launches


def compute_step(machine: CaptureContext, inputs: StepInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Launch a step, from embedding to sampling. Return the outputs of `CapturedStep` unawaited."""
    wide = inputs.wide()
    token_ids = _token_ids(machine, inputs, wide["token_ids"])
    outputs, layout = wide["outputs"], _layout(machine, inputs, wide)
    states = _states(machine, inputs, layout, wide)
    adapters = inputs.field("adapters") if inputs.bucket.has_adapters else None
    pool, decoder = machine.pool, machine.decoder
    whole = None
    if decoder.has_draft_head:
        whole = decoder.hidden(token_ids, layout, pool, None, states, adapters)
        logits = decoder.logits_of(whole.index_select(0, outputs))
    else:
        logits = decoder.logits(token_ids, layout, pool, outputs, states, adapters)
    if not machine.decoder.has_logits:  # only the last pipeline stage samples
        return logits, outputs.new_empty((2, 0), dtype=torch.int32), outputs.new_empty(0)
    tokens, finite = machine.decoder.ops.sample(
        logits, inputs.field("temperature").view(torch.float32), inputs.field("keys").view(-1, 2)
    )
    if machine.decoder.group is not None:  # all ranks take the first rank's tokens
        machine.decoder.group.share(tokens)
    machine.last_tokens.index_copy_(0, wide["output_slots"], tokens)
    results = [tokens.int(), finite.int()]
    if whole is not None:
        following = NextTokens(wide["next_ids"], wide["drawn"])
        followed = _followed(machine, inputs, wide)
        head = HeadStep(decoder, pool, layout, whole, following, outputs, token_ids, followed)
        results += head.draft(tokens).int()
    packed = torch.stack(results)
    return logits, packed, token_ids.index_select(0, outputs)


def _token_ids(machine: CaptureContext, inputs: StepInputs, given: Tensor) -> Tensor:
    batch_slots = inputs.field("pending_slots")
    pending = machine.last_tokens.index_select(0, batch_slots)
    return torch.where(batch_slots < machine.tables.nobody, pending, given)


def _layout(machine: CaptureContext, inputs: StepInputs, wide: dict[str, Tensor]) -> BatchLayout:
    bucket = inputs.bucket
    tables = machine.tables.device
    return BatchLayout(
        query_starts=inputs.field("query_starts"),
        context_lens=inputs.field("context_lens"),
        block_tables=tables.index_select(0, inputs.field("table_slots")),
        positions=wide["positions"],
        slots=wide["slots"],
        num_decodes=bucket.num_decodes,
        max_context_len=tables.shape[1] * machine.pool[0].shape[3],
        shared=_shared(inputs),
        arrivals=no_arrivals(bucket.num_decodes, [*machine.pool, *_window_layers(machine)]),
        splits=inputs.field("units").view(-1, 2),
    )


def _followed(
    machine: CaptureContext, inputs: StepInputs, wide: dict[str, Tensor]
) -> Followed | None:
    if not inputs.bucket.follows:
        return None
    ends = inputs.field("followed_ends")
    return Followed(
        samples=torch.arange(len(ends), device=ends.device),
        firsts=wide["followed_firsts"],
        compared=wide["compared"],
        ends=ends,
        tables=machine.tables.device.index_select(0, inputs.field("followed_slots")),
        splits=inputs.field("followed_splits").view(1, 2),
    )


def _window_layers(machine: CaptureContext) -> tuple[Tensor, ...]:
    return () if machine.rings is None else machine.rings.layers


def _states(
    machine: CaptureContext, inputs: StepInputs, layout: BatchLayout, wide: dict[str, Tensor]
) -> StepMemory:
    if machine.rings is not None:
        tables = RingTables(
            inputs.field("rings"),
            inputs.field("ring_ends"),
            inputs.field("scratch_starts"),
            wide["window_slots"],
        )
        return StepWindows(tables.layout(layout, machine.rings.shape), machine.rings.layers)
    if not machine.states:
        return None
    rows = StateRows(
        row_starts=layout.query_starts,
        context_lens=layout.context_lens,
        read_slots=inputs.field("read_slots"),
        write_slots=inputs.field("write_slots"),
        runs=inputs.field("runs"),
        kept=inputs.field("kept"),
        num_decodes=layout.num_decodes,
    )
    return StepStates(rows, machine.states)


def _shared(inputs: StepInputs) -> SharedPrefix | None:
    if not inputs.bucket.group_rows:
        return None
    return SharedPrefix(
        group_starts=inputs.field("group_starts"),
        key_ends=inputs.field("key_ends"),
        own_starts=inputs.field("own_starts"),
        max_group_rows=inputs.bucket.group_rows,
    )
