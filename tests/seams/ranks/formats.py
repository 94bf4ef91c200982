"""Small models in formats that ranks can divide, and the logits and samples of one rank.

A rank is opened as in a server: peer memory, weights, graphs. There is no scheduler: all ranks have
the same tokens, and so each makes the same steps by itself.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from engine.config import DeviceName, DtypeName, EngineConfig, KvDtype, Quantization
from engine.execution.graphs.runner import GraphRunner
from engine.execution.runner import ModelRunner
from engine.models.forward.decoder import Decoder
from engine.ranks.collectives import Rendezvous
from engine.ranks.groups import RankGroups
from engine.startup.loading import OpenedPart, open_part
from engine.startup.memory.activation import largest_batch
from engine.startup.metadata import read_metadata
from storage.pools.device_pool import DevicePool
from tests.doubles.engine.device.rerun import Rerun
from tests.doubles.ranks.noting_group import NotingGroup
from tests.engine.rigs.hand_driven import (
    BLOCK_SIZE,
    HandDriven,
    output,
    random_prompt,
    sampling,
    with_graphs,
)

# Sizes of every model. In every format, a quarter of each matrix consists of whole quantisation
# groups.
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "moe_intermediate_size": 512,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,  # fewer KV heads than the four ranks
    "max_position_embeddings": 2048,
}
POSITIONS, ROWS, CACHE_TOKENS = 2048, 4, 16_384
MOST_ROWS = 64  # number of rows of a captured step
PROMPT = 200  # number of tokens whose logits are compared
PATIENCE = timedelta(seconds=60)
Exchange = Literal["peer memory", "library"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """A model's directory, and its settings."""

    model_dir: Path
    dtype: DtypeName = "bfloat16"
    quantization: Quantization = "none"
    kv_dtype: KvDtype = "auto"
    device: DeviceName = "cuda"
    steps: int = 64  # number of decode steps
    exchange: Exchange = "peer memory"

    def config(self, num_ranks: int) -> EngineConfig:
        """Return the engine's config."""
        return EngineConfig.of(
            model_dir=str(self.model_dir),
            socket="",
            device=self.device,
            dtype=self.dtype,
            quantization=self.quantization,
            kv_dtype=self.kv_dtype,
            cache_tokens=CACHE_TOKENS,
            max_batch_tokens=512,
            max_running=2 * ROWS,
            graph_tokens=2 * ROWS,
            num_threads=1,
            tensor_parallel=num_ranks,
            peer_memory=self.exchange == "peer memory",
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one rank.

    `logits` (PROMPT, V) float32 are those of a prompt. `sampled` (steps, rows) are this rank's own
    samples. `texts` are the tokens of each sequence, which all ranks receive.
    """

    logits: Tensor
    sampled: Tensor
    texts: list[list[int]]
    has_peers: bool
    seconds: float


def compute(rank: int, num_ranks: int, directory: Path, served: Served) -> Found:
    """Run a rank from its start to its end. Has the signature that `Job` needs."""
    began = time.monotonic()
    config = served.config(num_ranks)
    metadata = read_metadata(config, rank=rank)
    if num_ranks == 1:
        part = open_part(config, metadata)
        with closing(part):
            return _found(part, None, served, began)
    rendezvous = Rendezvous(str(directory / "rendezvous"), rank, num_ranks, PATIENCE)
    group = NotingGroup(rendezvous, metadata.device, served.steps, MOST_ROWS)
    groups = RankGroups(group, group, None, None)
    with closing(groups):
        part = open_part(config, metadata, groups)
        with closing(part):
            found = _found(part, group, served, began)
            group.least(0)  # a barrier: no rank ends before all are done
            return found


def _found(part: OpenedPart, group: NotingGroup | None, served: Served, began: float) -> Found:
    runner = part.runner
    # only a GPU's runner; on a CPU, replays run the whole work again
    if isinstance(runner, ModelRunner):
        runner = with_graphs(runner, Rerun(), max_tokens=64, max_model_len=POSITIONS)
    assert isinstance(runner, GraphRunner)
    _log.info("opened after %.1f s", time.monotonic() - began)
    if group is not None:
        group.begin()
    texts = decoded(runner, served.steps)
    sampled = torch.empty(0) if group is None else group.sampled.cpu()
    found = logits(runner.eager.decoder, part.pool, random_prompt(PROMPT, seed=7))
    has_peers = group is not None and group.has_peers
    return Found(found.float().cpu(), sampled, texts, has_peers, time.monotonic() - began)


def decoded(runner: GraphRunner, steps: int) -> list[list[int]]:
    """Return greedy tokens of concurrent sequences. New sequences start when others end."""
    texts: list[list[int]] = []
    while steps:
        driven, count = HandDriven(runner.eager, runner), min(steps, POSITIONS - 64)
        sequences = [
            driven.add(random_prompt(9 + 5 * row, seed=row + len(texts)), sampling(count + 1))
            for row in range(ROWS)
        ]
        for sequence in sequences:
            driven.step((sequence, sequence.num_tokens))
        for _ in range(count):
            driven.step(*((sequence, 1) for sequence in sequences))
        texts.extend(output(sequence) for sequence in sequences)
        steps -= count
    return texts


@torch.inference_mode()
def logits(decoder: Decoder, pool: DevicePool, prompt: list[int]) -> Tensor:
    """Return logits (tokens, V) of a prompt computed at once, in the pool's first blocks."""
    device = decoder.parameters.embedding.device
    batch = largest_batch(len(prompt), POSITIONS, BLOCK_SIZE, device)
    ids = torch.tensor(prompt, device=device)
    outputs = torch.arange(len(prompt), device=device)
    return decoder.logits(ids, batch.layout, pool.layers, outputs)
