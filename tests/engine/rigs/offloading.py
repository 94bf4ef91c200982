"""Models with some or all layers in host memory, and their logits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig, kv_layout, state_layout
from engine.models.forward.build_decoder import build_decoder
from engine.models.forward.decoder import WeightPrefetch
from engine.models.parameters import Parameters
from engine.models.rank_group import RankGroup
from engine.models.shards import shard_model
from engine.offload.host_layers import HostLayers
from engine.offload.placement import Placement, evenly_spaced
from engine.offload.prefetch import PlainLayerCopies, prefetch_of
from engine.startup.decoder import weight_sizes
from engine.startup.device import dtype_name
from engine.startup.memory.activation import largest_batch, small_states, state_rows
from kernels.ops import ops_for
from storage.pools.device_pool import DevicePool
from storage.pools.state_pool import StepStates

BLOCK_SIZE, NUM_TOKENS = 16, 40
CPU = torch.device("cpu")
PrefetchOf = Callable[[HostLayers], WeightPrefetch]


class LateCopies(PlainLayerCopies):
    """Copies that run as late as possible: when a step waits for them."""

    def __init__(self) -> None:
        self.started: dict[int, tuple[Tensor, Tensor]] = {}

    def start(self, index: int, target: Tensor, source: Tensor) -> None:
        self.started[index] = target, source

    def wait(self, index: int) -> None:
        target, source = self.started.pop(index)
        target.copy_(source)


def host_layers(
    model: ModelConfig,
    count: int | None = None,
    group: RankGroup | None = None,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> HostLayers:
    """Allocate host memory for `count` of the layers, even if this frees no device memory; None:
    for all.
    """
    sizes = weight_sizes(model, dtype, group).layers
    chosen = evenly_spaced(len(sizes), count or len(sizes))
    bytes_of = [sizes[index] for index in chosen]
    return HostLayers(Placement(chosen, sum(bytes_of), max(bytes_of)), sizes, device)


@torch.inference_mode()
def logits(
    parameters: Parameters,
    model: ModelConfig,
    prefetch: WeightPrefetch | None = None,
    group: RankGroup | None = None,
) -> Tensor:
    """Return a prompt's logits from two steps, with a step of other tokens between them."""
    embedding = parameters.embedding
    device, num_ranks = embedding.device, 1 if group is None else group.num_ranks
    part = shard_model(model, num_ranks)
    decoder = build_decoder(part, parameters, ops_for(device), model.max_positions, group)
    decoder = replace(decoder, prefetch=prefetch)
    layout = kv_layout(model.layers, dtype_name(embedding.dtype), BLOCK_SIZE)
    pool = DevicePool(
        layout if group is None else layout.slice_of(group.rank, num_ranks), 4, device
    )
    batch = largest_batch(NUM_TOKENS, 64, BLOCK_SIZE, device)
    every = torch.arange(NUM_TOKENS, device=device)
    of_states = state_layout(part.layers, dtype_name(embedding.dtype))
    states = StepStates(state_rows(batch.layout), small_states(of_states, device))
    steps = [
        decoder.logits(
            every * factor % model.vocab_size, batch.layout, pool.layers, outputs, states
        )
        for factor, outputs in ((7, every), (5, every[:0]), (3, every))
    ]
    return torch.cat(steps)


def logits_from_host(
    model_dir: Path,
    model: ModelConfig,
    count: int | None = None,
    group: RankGroup | None = None,
    prefetch: PrefetchOf = prefetch_of,
) -> Tensor:
    """Return logits with the weights of `count` layers in host memory; None: of all layers."""
    with closing(host_layers(model, count, group)) as layers:
        parameters = load_parameters(model_dir, model, torch.float32, CPU, group, layers)
        return logits(parameters, model, prefetch(layers), group)


def logits_from_device(
    model_dir: Path, model: ModelConfig, group: RankGroup | None = None
) -> Tensor:
    """Return logits with all weights on the device."""
    return logits(load_parameters(model_dir, model, torch.float32, CPU, group), model, None, group)
