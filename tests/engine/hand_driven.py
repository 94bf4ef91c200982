"""A runner driven by hand: sequences with blocks handed out in order, steps written down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from engine.graphs.block_tables import BlockTables
from engine.graphs.recorder import Recorder
from engine.graphs.runner import GraphRunner
from engine.graphs.steps import Machine, RecordedSteps
from engine.messages import SamplingParams, TokenLogprobs
from engine.model.config import ModelConfig, read_model_config
from engine.model.decoder import build_decoder
from engine.model.weights import load_parameters
from engine.runner import ModelRunner
from engine.sampler.planner import Planner
from engine.sampler.sampler import Sampler
from engine.sequence import Sequence
from engine.step import Row, Runner, Sampled, Step
from kernels.ops import Ops, ops_for
from kernels.unit_sizes import unit_sizes
from prefix_cache.lease import Lease
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.node import Node
from storage.device_pool import BlockShape, DevicePool
from storage.mover import Mover

BLOCK_SIZE = 16
SEATS = 24
PATH = NamespacePath.single(Namespace(bytes(16)))


def sampling(max_tokens: int = 64, temperature: float = 0.0, **fields: Any) -> SamplingParams:
    """Greedy unless told otherwise."""
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, **fields)


# One of each way to sample: greedy, drawn, filtered, penalised, biased, reporting.
EVERY_WISH = [
    sampling(8),
    sampling(8, 1.0, seed=1),
    sampling(8, 0.8, seed=2, top_k=20),
    sampling(8, 0.8, seed=3, top_p=0.9, min_p=0.05),
    sampling(8, 1.0, seed=4, repetition_penalty=1.3, presence_penalty=0.5, num_logprobs=3),
    sampling(8, 1.0, seed=5, logit_bias={7: 2.0, 9: -100.0}, min_tokens=4, num_logprobs=0),
]


def lease_of(block_ids: list[int]) -> Lease:
    """A private lease of these blocks."""
    return Lease(
        path=PATH,
        owner="flow",
        shares=False,
        block_ids=np.array(block_ids, dtype=np.int32),
        num_blocks=len(block_ids),
        num_shared=0,
        node=cast(Node, None),  # the tree's affair; a runner never looks
        cached_tokens=0,
        moves=(),
    )


def sequence_of(
    prompt: list[int], wish: SamplingParams | None = None, block_ids: list[int] | None = None
) -> Sequence:
    """A sequence of `prompt`, with a lease when blocks are given."""
    wish = wish or sampling()
    tokens = np.zeros(len(prompt) + wish.max_tokens, dtype=np.int32)
    tokens[: len(prompt)] = prompt
    return Sequence(
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
        lease=None if block_ids is None else lease_of(block_ids),
        seat=0,
    )


class CountedSeeds:
    """1, 2, 3... to rows without a seed."""

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
) -> ModelRunner:
    """The runner of a checkpoint, with its own pool; `ops` are the device's where not given."""
    device = device or torch.device("cpu")
    config = read_model_config(model_dir)
    parameters = load_parameters(model_dir, config, dtype, device)
    decoder = build_decoder(config, parameters, ops or ops_for(device), config.max_positions)
    shape = BlockShape(config.num_layers, config.num_kv_heads, BLOCK_SIZE, config.head_dim, dtype)
    pool = DevicePool(shape, num_blocks, device)
    planner = Planner(config.vocab_size, config.eos_token_ids, CountedSeeds())
    return ModelRunner(
        decoder,
        Sampler(planner, decoder.ops.draw, decoder.ops.keep_likeliest),
        pool,
        Mover(pool, decoder.ops.copy_blocks),
        torch.zeros(SEATS + 1, dtype=torch.int64, device=device),
        sizes=unit_sizes(pool.tensor),
    )


def with_graphs(
    runner: ModelRunner, recorder: Recorder, *, max_tokens: int = 128, max_model_len: int = 1024
) -> GraphRunner:
    """The same runner with its small steps recorded; the pool's last block takes the padding."""
    pool = runner.pool.tensor
    tables = BlockTables(
        num_seats=len(runner.last_tokens) - 1,
        num_blocks=-(-max_model_len // pool.shape[4]),
        scratch_block=pool.shape[0] - 1,
        device=pool.device,
    )
    machine = Machine(runner.decoder, pool, runner.last_tokens, tables)
    group_rows = 0 if runner.prefixes is None else runner.prefixes.rule.most_rows
    steps = RecordedSteps(machine, recorder, max_tokens=max_tokens, group_rows=group_rows)
    return GraphRunner(runner, tables, steps)


@dataclass
class Blocks:
    """Hands out blocks once each, out of order, so that no test leans on neighbours."""

    num_blocks: int
    given: int = 0

    def take(self, num_tokens: int) -> list[int]:
        """Blocks for `num_tokens` tokens."""
        count = -(-num_tokens // BLOCK_SIZE)
        first = self.given
        self.given += count
        assert self.given <= self.num_blocks
        return [index * 7 % self.num_blocks for index in range(first, first + count)]


class HandDriven:
    """Sequences on one runner, and steps over them."""

    def __init__(self, runner: ModelRunner, launcher: Runner | None = None) -> None:
        self.runner = runner
        self.launcher: Runner = launcher or runner
        self.blocks = Blocks(runner.pool.tensor.shape[0] - 1)
        self.seats = 0

    @property
    def model(self) -> ModelConfig:
        return self.runner.decoder.config

    def add(self, prompt: list[int], wish: SamplingParams | None = None) -> Sequence:
        """A new sequence with all the blocks it may come to need."""
        wish = wish or sampling()
        sequence = sequence_of(prompt, wish, self.blocks.take(len(prompt) + wish.max_tokens))
        sequence.seat = self.seats % (len(self.runner.last_tokens) - 1)
        self.seats += 1
        return sequence

    def grow(self, stem: Sequence, num_blocks: int, tail: list[int], max_tokens: int) -> Sequence:
        """A new sequence that begins with the computed first `num_blocks` blocks of `stem`."""
        assert stem.lease is not None
        shared = num_blocks * BLOCK_SIZE
        prompt = [*stem.tokens[:shared].tolist(), *tail]
        sequence = self.add(prompt, sampling(max_tokens))
        assert sequence.lease is not None
        sequence.lease.block_ids[:num_blocks] = stem.lease.blocks[:num_blocks]
        sequence.num_computed = shared
        return sequence

    def step(self, *work: tuple[Sequence, int]) -> list[Sampled]:
        """Compute the next tokens of each sequence, one-token rows first; append what is sampled.

        Returns the samples in the order of the rows.
        """
        ordered = sorted(work, key=lambda pair: pair[1] > 1)
        rows = tuple(Row(sequence, sequence.num_computed, new) for sequence, new in ordered)
        samples = self.launcher.launch(Step(rows)).collect()
        sampling_rows = [row for row in rows if row.samples]
        for row in rows:
            row.sequence.num_computed = row.end
        for row, sample in zip(sampling_rows, samples, strict=True):
            if sample.token_id is not None:
                row.sequence.append(sample.token_id)
        return samples

    def generate(self, sequence: Sequence, chunk: int = 1024) -> list[TokenLogprobs | None]:
        """Run one sequence alone to its max_tokens; its log-probabilities."""
        logprobs: list[TokenLogprobs | None] = []
        while sequence.num_output < sequence.sampling.max_tokens:
            new = min(chunk, sequence.num_tokens - sequence.num_computed)
            logprobs += [sample.logprobs for sample in self.step((sequence, new))]
        return logprobs


def output(sequence: Sequence) -> list[int]:
    """What was generated."""
    return [int(token) for token in sequence.output_ids]


def random_prompt(length: int, seed: int = 0, vocab_size: int = 300) -> list[int]:
    """Token ids from a fixed seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, vocab_size, length)]
