"""Two ranks, or two stages, replay the same padded steps and get the same tokens.

On a CPU, captured work is run again. The tests show that all ranks exchange the same data in the
same order, also when rows are sampled again after a replay. Of two stages, only the last has
tokens.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest
import torch

from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.runner import GraphRunner
from engine.execution.runner import ModelRunner
from engine.models.checkpoints.weights import load_parameters
from engine.models.config import kv_layout
from engine.models.forward.build_decoder import build_decoder
from engine.models.served.reading import read_model_config
from engine.models.shards import shard_model
from engine.ranks.collectives import Collectives
from engine.ranks.messages import without_texts
from engine.ranks.pipe import StagePipe
from engine.ranks.sampling import ranks_sampler
from engine.ranks.stage_runners import EarlierStageRunner
from engine.startup.kernel_warm_up import compute_gemms
from engine.step import Forward, Launched, Runner, Step
from storage.layouts.stage import Stage
from storage.pools.device_pool import DevicePool, Mover
from tests.doubles.engine.device.rerun import Rerun
from tests.engine.conftest import MakeCheckpoint
from tests.engine.rigs.hand_driven import (
    BLOCK_SIZE,
    EVERY_WISH,
    HandDriven,
    build_runner,
    output,
    random_prompt,
    with_graphs,
)
from tests.engine.rigs.ranks import CPU, on_ranks

NUM_BLOCKS = 32
Frames = SimpleQueue[bytes | None]


class Told:
    """A runner that sends each step to another rank as bytes before it launches the step."""

    def __init__(self, runner: Runner, frames: Frames) -> None:
        self._runner = runner
        self._frames = frames

    def launch(self, step: Step) -> Launched:
        self._frames.put(msgspec.msgpack.encode(without_texts(step)))
        return self._runner.launch(step)

    def launch_forward(self, step: Step) -> Forward:
        raise AssertionError("nobody has a grammar here")


def rank_runner(model_dir: Path, group: Collectives) -> ModelRunner:
    """Return a function that builds one rank's runner."""
    model = read_model_config(model_dir)
    parameters = load_parameters(model_dir, model, torch.float32, CPU, group)
    runner = build_runner(model_dir, NUM_BLOCKS)
    layout = kv_layout(model.layers, "float32", BLOCK_SIZE).slice_of(group.rank, group.num_ranks)
    pool = DevicePool(layout, NUM_BLOCKS, CPU)
    part, ops = shard_model(model, group.num_ranks), runner.decoder.ops
    return replace(
        runner,
        decoder=build_decoder(part, parameters, ops, model.max_positions, group),
        sampler=ranks_sampler(runner.sampler, group),
        pool=pool,
        mover=Mover(pool, ops.copy_blocks),
    )


def served(driven: HandDriven) -> list[list[int]]:
    """Run a request with each kind of sampling, prompts first, then decodes together; return their
    tokens.
    """
    sequences = [
        driven.add(random_prompt(9 + 3 * number, seed=number), wish)
        for number, wish in enumerate(EVERY_WISH)
    ]
    for sequence in sequences:
        driven.step((sequence, sequence.num_tokens))
    for _ in range(7):
        driven.step(*((sequence, 1) for sequence in sequences))
    return [output(sequence) for sequence in sequences]


@pytest.mark.parametrize("max_tokens", [0, 4, 64])
def test_ranks_have_the_same_tokens(checkpoint: MakeCheckpoint, max_tokens: int) -> None:
    """Compare tokens without graphs, with graphs for the smallest steps, and with graphs for all
    steps.
    """
    model_dir = checkpoint("llama").model_dir
    frames: Frames = SimpleQueue()

    def run(group: Collectives) -> tuple[list[list[int]], list[int]]:
        eager = rank_runner(model_dir, group)
        runner: Runner = eager
        if max_tokens:
            runner = with_graphs(eager, Rerun(), max_tokens=max_tokens)
        tokens: list[list[int]] = []
        if group.rank == 0:
            tokens = served(HandDriven(eager, Told(runner, frames)))
            frames.put(None)
        else:
            for frame in iter(frames.get, None):
                runner.launch(msgspec.msgpack.decode(frame, type=Step))
        if isinstance(runner, GraphRunner):
            runner.steps.drop()
            with pytest.raises(AssertionError):
                runner.steps.find(GraphBucket(1, 0, 0)).captured.replay()  # type: ignore[union-attr]
        return tokens, eager.last_tokens[: len(EVERY_WISH)].tolist()

    (tokens, first), (_, second) = on_ranks(2, run)
    alone = served(HandDriven(build_runner(model_dir, NUM_BLOCKS)))
    assert tokens == alone
    assert first == second == [one[-1] for one in alone]


def stage_runner(model_dir: Path, group: Collectives) -> ModelRunner:
    """Return a function that builds the runner of one of two stages."""
    model = read_model_config(model_dir)
    pipe = StagePipe(Stage(group.rank, (1, 3)), group, CPU)
    parameters = load_parameters(model_dir, model, torch.float32, CPU, stage=pipe.stage)
    runner = build_runner(model_dir, NUM_BLOCKS)
    layout, ops = kv_layout(model.layers, "float32", BLOCK_SIZE), runner.decoder.ops
    pool = DevicePool(layout.stage_of(pipe.stage), NUM_BLOCKS, CPU)
    decoder = build_decoder(model, parameters, ops, model.max_positions, pipe=pipe)
    return replace(runner, decoder=decoder, pool=pool, mover=Mover(pool, ops.copy_blocks))


@pytest.mark.parametrize("max_tokens", [0, 4, 64])
def test_stages_give_the_tokens_of_one(checkpoint: MakeCheckpoint, max_tokens: int) -> None:
    model_dir = checkpoint("llama").model_dir
    frames: Frames = SimpleQueue()

    def run(group: Collectives) -> list[list[int]]:
        eager = stage_runner(model_dir, group)
        compute_gemms(eager.decoder, 3, sampling=True)
        runner: Runner = eager
        if max_tokens:
            runner = with_graphs(eager, Rerun(), max_tokens=max_tokens)
        if eager.decoder.has_logits:
            tokens = served(HandDriven(eager, Told(runner, frames)))
            frames.put(None)
            return tokens
        earlier = EarlierStageRunner(runner, CPU)
        for frame in iter(frames.get, None):
            assert earlier.launch(msgspec.msgpack.decode(frame, type=Step)).collect() == []
        return []

    nothing, tokens = on_ranks(2, run)
    assert tokens == served(HandDriven(build_runner(model_dir, NUM_BLOCKS)))
    assert nothing == []
