"""A runner driven by hand: tests write its steps, and sequences get blocks in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.execution.batch import Batch, build_batch
from engine.execution.block_tables import BlockTables
from engine.execution.graphs.block_tables import DeviceTables
from engine.execution.graphs.capture import Capture
from engine.execution.graphs.runner import GraphRunner
from engine.execution.graphs.steps import CaptureContext, CapturedSteps
from engine.execution.rings import Rings
from engine.execution.runner import ModelRunner
from engine.link.event_messages import TokenLogprobs
from engine.link.messages import SamplingParams, pack_logit_bias
from engine.models.checkpoints.stored_head import with_stored_head
from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig
from engine.models.forward.build_decoder import build_decoder
from engine.models.freed_windows import freed, whole
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED, ServedModels
from engine.sampling.planner import Planner
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.scheduling.row_data import sent, step_of
from engine.scheduling.scheduled_rows import row_of
from engine.sequences.sequence import Sequence
from engine.startup.device import dtype_name
from engine.step import Row, Runner, Sampled
from kernels.attention.decode.split_sizes import split_sizes
from kernels.ops import Ops, ops_for
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tree.node import Node
from storage.layouts.state_layout import StateLayout
from storage.layouts.window_layout import WindowLayout
from storage.move import FIRST_SLOT, NO_STATE
from storage.pools.device_pool import DevicePool, Mover
from storage.pools.state_pool import StatePool
from storage.pools.window_pool import WindowPool

BLOCK_SIZE = 16
BATCH_SLOTS = 24
NUM_STATES = 1024
_LEASE_IDS = count(1)
PATH = NamespacePath.single(Namespace(bytes(16)))


def sampling(max_tokens: int = 64, temperature: float = 0.0, **fields: Any) -> SamplingParams:
    """Make sampling parameters, greedy by default. `logit_bias` is a dict from id to bias."""
    if "logit_bias" in fields:
        fields["logit_bias"] = pack_logit_bias(fields["logit_bias"])
    fields["stop_token_ids"] = frozenset(fields.get("stop_token_ids", ()))
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, **fields)


# One request for each kind of sampling: greedy, drawn, filtered, penalised, biased, reporting
# log-probabilities.
EVERY_WISH = [
    sampling(8),
    sampling(8, 1.0, seed=1),
    sampling(8, 0.8, seed=2, top_k=20),
    sampling(8, 0.8, seed=3, top_p=0.9, min_p=0.05),
    sampling(8, 1.0, seed=4, repetition_penalty=1.3, presence_penalty=0.5, num_logprobs=3),
    sampling(8, 1.0, seed=5, logit_bias={7: 2.0, 9: -100.0}, min_tokens=4, num_logprobs=0),
]


def lease_of(block_ids: list[int]) -> Lease:
    """Make a private lease of these blocks."""
    return Lease(
        path=PATH,
        owner="flow",
        shares=False,
        block_ids=np.array(block_ids, dtype=np.int32),
        num_blocks=len(block_ids),
        num_shared=0,
        node=cast(Node, None),  # only the tree reads this field
        cached_tokens=0,
        moves=(),
    )


def sequence_of(
    prompt: list[int], wish: SamplingParams | None = None, block_ids: list[int] | None = None
) -> Sequence:
    """Make a sequence of `prompt`, with a lease if blocks are given."""
    wish = wish or sampling()
    tokens = np.zeros(len(prompt) + wish.max_tokens, dtype=np.int32)
    tokens[: len(prompt)] = prompt
    sequence = Sequence(
        request_id="r",
        client=b"",
        flow="flow",
        weight=1.0,
        path=PATH,
        block_keys=b"",
        sampling=wish,
        prompt_len=len(prompt),
        arrived=0.0,
        tokens=tokens,
        num_tokens=len(prompt),
        batch_slot=0,
    )
    if block_ids is not None:
        hold(sequence, block_ids)
    return sequence


def hold(sequence: Sequence, block_ids: list[int]) -> None:
    """Give a sequence a lease of these blocks."""
    sequence.hold(lease_of(block_ids), next(_LEASE_IDS))


def data_row(sequence: Sequence, start: int, num_new: int) -> Row:
    """Return a row of a sequence's new tokens, with its unsent blocks and parameters."""
    return sent(row_of(sequence, num_new, start))


def last_rows(sequences: Iterable[Sequence]) -> list[Row]:
    """Return a row for each sequence, with the sequence's last token."""
    return [data_row(one, one.length - 1, 1) for one in sequences]


class CountedSeeds:
    """The seeds 1, 2, 3, ... for rows without a seed."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last += 1
        return self._last


def build_runner(
    model_dir: Path,
    num_blocks: int = 256,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    ops: Ops | None = None,
    served: ServedModels = SERVED,
    num_positions: int | None = None,
    *,
    frees_windows: bool = False,
) -> ModelRunner:
    """Build a checkpoint's runner with its own pool; `ops` default to those of the device."""
    device = device or torch.device("cpu")
    config = with_stored_head(read_model_config(model_dir, served), model_dir)
    parameters = load_parameters(model_dir, config, dtype, device)
    num_positions = num_positions or config.max_positions
    ops = ops or ops_for(device)
    decoder = build_decoder(config, parameters, ops, num_positions, frees_windows=frees_windows)
    name, layers = dtype_name(dtype), config.layers_with_memory
    kept = (freed(layers, name, BLOCK_SIZE) if frees_windows else None) or whole(
        layers, name, name, BLOCK_SIZE
    )
    pool, layout = DevicePool(kept.kv, num_blocks, device), kept.states
    given = NUM_STATES, device, pool.block_bytes
    planner = Planner(config.vocab_size, config.eos_token_ids, CountedSeeds(), BATCH_SLOTS)
    return ModelRunner(
        decoder,
        Sampler(planner, decoder.ops, SlotTables(BATCH_SLOTS, config.vocab_size)),
        pool,
        Mover(pool, decoder.ops.copy_blocks),
        torch.zeros(BATCH_SLOTS + 1, dtype=torch.int64, device=device),
        BlockTables(num_batch_slots=BATCH_SLOTS, num_blocks=num_blocks),
        sizes=split_sizes(pool.layers[decoder.whole_context]),
        states=StatePool(layout, *given) if isinstance(layout, StateLayout) else None,
        rings=Rings(WindowPool(layout, *given, num_blocks), decoder.ops.copy_blocks)
        if isinstance(layout, WindowLayout)
        else None,
    )


def with_graphs(
    runner: ModelRunner, capture: Capture, *, max_tokens: int = 128, max_model_len: int = 1024
) -> GraphRunner:
    """Return the runner with its small steps captured; padded rows write to the pool's last
    block.
    """
    pool = runner.pool
    tables = DeviceTables(
        num_batch_slots=len(runner.last_tokens) - 1,
        num_blocks=-(-max_model_len // pool.layout.block_size),
        scratch_block=pool.num_blocks - 1,
        device=pool.tensor.device,
    )
    states = () if runner.states is None else runner.states.layers
    rings = None if runner.rings is None else runner.rings.pool
    machine = CaptureContext(runner.decoder, pool.layers, runner.last_tokens, tables, states, rings)
    group_rows = 0 if runner.prefixes is None else runner.prefixes.rule.most_rows
    steps = CapturedSteps(machine, capture, max_tokens=max_tokens, group_rows=group_rows)
    return GraphRunner(replace(runner, tables=tables), steps)


@dataclass
class Blocks:
    """A pool that hands out each block once, in mixed order, so that no test depends on adjacent
    blocks.
    """

    num_blocks: int
    given: int = 0

    def take(self, num_tokens: int) -> list[int]:
        """Take blocks for `num_tokens` tokens."""
        count = -(-num_tokens // BLOCK_SIZE)
        first = self.given
        self.given += count
        assert self.given <= self.num_blocks
        stride = 7 if self.num_blocks % 7 else 5
        assert self.num_blocks % stride, "else two of a sequence's blocks are one"
        return [index * stride % self.num_blocks for index in range(first, first + count)]


class States:
    """A pool that hands out a state slot for each position of a lease at which a row ends."""

    def __init__(self, num_slots: int) -> None:
        self.slots: dict[tuple[int, int], int] = {}
        self._num_slots = num_slots

    def of(self, row: Row) -> Row:
        """Return the row with the slots of its states; a position always gets the same slot."""
        before = self.slots[row.lease_id, row.start] if row.start else NO_STATE
        after = self.slots.setdefault((row.lease_id, row.end), FIRST_SLOT + len(self.slots))
        assert after < self._num_slots
        return msgspec.structs.replace(row, state_in=before, state_out=after)


class HandDriven:
    """Sequences on one runner, and their steps."""

    def __init__(self, runner: ModelRunner, launcher: Runner | None = None) -> None:
        self.runner = runner
        self.launcher: Runner = launcher or runner
        self.blocks = Blocks(runner.pool.num_blocks - 1)
        self.batch_slots = 0
        slotted = runner.states if runner.rings is None else runner.rings.pool
        self.states = None if slotted is None else States(slotted.num_slots)

    @property
    def model(self) -> ModelConfig:
        return self.runner.decoder.config

    def add(self, prompt: list[int], wish: SamplingParams | None = None) -> Sequence:
        """Add a sequence with all blocks that it may need."""
        wish = wish or sampling()
        sequence = sequence_of(prompt, wish, self.blocks.take(len(prompt) + wish.max_tokens))
        sequence.batch_slot = self.batch_slots % (len(self.runner.last_tokens) - 1)
        self.batch_slots += 1
        return sequence

    def batch(self, rows: list[Row]) -> Batch:
        """Build the batch of these rows."""
        self.runner.tables.update(rows)
        device = self.runner.last_tokens.device
        return build_batch(
            self.with_states(rows),
            self.runner.tables,
            BLOCK_SIZE,
            device,
            has_states=self.runner.states is not None,
            rings=None if self.runner.rings is None else self.runner.rings.pool.shape,
        )

    def with_states(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows with their states' slots, if the model has states."""
        return list(rows) if self.states is None else [self.states.of(row) for row in rows]

    def logits(self, rows: list[Row], outputs: Tensor | None = None) -> Tensor:
        """Return the logits of every token of `rows`, or of the tokens `outputs`, from one step."""
        batch, runner = self.batch(rows), self.runner
        if outputs is None:
            outputs = torch.arange(len(batch.token_ids))
        if runner.rings is not None:
            runner.rings.enter(self.with_states(rows))
        states, pool = runner.states_of(batch), runner.pool.layers
        logits = runner.decoder.logits(
            batch.token_ids, batch.layout, pool, outputs, states, batch.adapters
        )
        if runner.rings is not None:
            runner.rings.leave(self.with_states(rows))
        return logits

    def grow(self, stem: Sequence, num_blocks: int, tail: list[int], max_tokens: int) -> Sequence:
        """Add a sequence that begins with the first `num_blocks` computed blocks of `stem`."""
        assert stem.lease is not None
        shared = num_blocks * BLOCK_SIZE
        prompt = [*stem.tokens[:shared].tolist(), *tail]
        sequence = self.add(prompt, sampling(max_tokens))
        assert sequence.lease is not None
        sequence.lease.block_ids[:num_blocks] = stem.lease.blocks[:num_blocks]
        sequence.num_computed = shared
        return sequence

    def step(self, *work: tuple[Sequence, int]) -> list[Sampled]:
        """Compute the next tokens of each sequence, one-token rows first; append the samples.

        Returns the samples in the order of the rows.
        """
        scheduled = step_of(row_of(sequence, new) for sequence, new in work)
        step = msgspec.structs.replace(
            scheduled.step, rows=tuple(self.with_states(scheduled.step.rows))
        )
        samples = self.launcher.launch(step).collect()
        sampling_rows = [row for row in scheduled.rows if row.samples]
        for row in scheduled.rows:
            row.sequence.num_computed = row.end
        for row, sample in zip(sampling_rows, samples, strict=True):
            if sample.token_id is not None:
                row.sequence.append(sample.token_id)
        return samples

    def generate(self, sequence: Sequence, chunk: int = 1024) -> list[TokenLogprobs | None]:
        """Run one sequence alone to its max_tokens; return its log-probabilities."""
        logprobs: list[TokenLogprobs | None] = []
        while sequence.num_output < sequence.sampling.max_tokens:
            new = min(chunk, sequence.num_tokens - sequence.num_computed)
            logprobs += [sample.logprobs for sample in self.step((sequence, new))]
        return logprobs


def output(sequence: Sequence) -> list[int]:
    """Return the generated tokens."""
    return [int(token) for token in sequence.output_ids]


def random_prompt(length: int, seed: int = 0, vocab_size: int = 300) -> list[int]:
    """Draw token ids from a seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, vocab_size, length)]
