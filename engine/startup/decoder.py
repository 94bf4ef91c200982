"""The loading of a decoder: weights on the device, or layers offloaded to host memory.

Before anything is allocated, the memory of both is checked. The pool gets what remains.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.models.adapters.adapted import AdapterSlots, RankPart, with_adapters
from engine.models.checkpoints.weights import load_parameters
from engine.models.config import ModelConfig
from engine.models.errors import NotEnoughMemory
from engine.models.forward.build_decoder import build_decoder
from engine.models.forward.decoder import Decoder
from engine.models.modules import Allocator
from engine.models.parameters import Parameters, dummy_parameters, empty_parameters
from engine.models.rank_group import RankGroup
from engine.models.shards import shard_layers
from engine.offload.host_layers import HostLayers
from engine.offload.memory import CountingMemory
from engine.offload.placement import GIB, Placement, as_gib, least_placement, place
from engine.offload.prefetch import prefetch_of
from engine.ranks.groups import RankGroups
from engine.startup.device import free_bytes
from engine.startup.metadata import ModelMetadata
from engine.startup.origin import DUMMY_SEED
from kernels.ops import ops_for
from storage.layouts.stage import Stage, whole

ROOM_PART = 0.8  # maximum share of device memory for weights that an error message advises

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """The bytes of a rank's weights: of each layer, and outside the layers."""

    layers: tuple[int, ...]
    others: int

    def on_device(self, placement: Placement | None) -> int:
        """Return the bytes of weights on the device, including buffers for offloaded layers."""
        freed = 0 if placement is None else placement.freed_bytes
        return self.others + sum(self.layers) - freed


def weight_sizes(
    model: ModelConfig,
    dtype: torch.dtype,
    group: RankGroup | None = None,
    stage: Stage | None = None,
) -> WeightSizes:
    """Count the bytes of a rank's weights in a stage, or of the model's. Allocates nothing."""
    device = torch.device("meta")
    stage = stage or whole(len(model.layers))
    parts = shard_layers(model.layers, 1 if group is None else group.num_ranks)
    layers = []
    for index in stage.layers:
        memory = CountingMemory()
        parts[index].build(index, Allocator(model.weight_format, dtype, device, group, memory))
        layers.append(memory.num_bytes)
    all_of_it = empty_parameters(model, dtype, device, group, stage=stage)
    return WeightSizes(tuple(layers), replace(all_of_it, layers=()).num_bytes)


def chosen_placement(config: EngineConfig, sizes: WeightSizes) -> Placement | None:
    """Choose the layers to offload to host memory, or return None. Raises WrongSetting."""
    return place(sizes.layers, config.model.cpu_offload_gb) if config.model.cpu_offload_gb else None


def load_decoder(
    config: EngineConfig,
    metadata: ModelMetadata,
    groups: RankGroups | None,
    host_layers: HostLayers | None,
) -> Decoder:
    """Load the decoder of one rank, or of the whole model. Raises ModelError."""
    group, pipe = (None, None) if groups is None else (groups.tensor, groups.pipe)
    parameters = _parameters(config, metadata, group, host_layers)
    decoder = build_decoder(
        metadata.part,
        parameters,
        ops_for(metadata.device),
        metadata.model_len,
        group,
        pipe,
        frees_windows=metadata.rings is not None,
    )
    if host_layers is None:
        return decoder
    return replace(decoder, prefetch=prefetch_of(host_layers))


def adapted_decoder(
    config: EngineConfig, metadata: ModelMetadata, decoder: Decoder
) -> tuple[Decoder, AdapterSlots | None]:
    """Add memory for adapters to a loaded decoder, if `config` has a folder of adapters."""
    model, group, part = config.model, decoder.group, None
    if model.adapters_dir is None:
        return decoder, None
    if metadata.grid.num_ranks > 1:
        part = RankPart(0, 1) if group is None else RankPart(group.rank, group.num_ranks)
    parameters, slots = with_adapters(
        metadata.model,
        decoder.parameters,
        model.adapter_slots,
        model.adapter_rank,
        part,
        of_experts=model.adapter_experts,
    )
    freed = parameters.num_bytes - decoder.parameters.num_bytes
    _log.info("%d adapters on the device: %.1f MiB", model.adapter_slots, freed / 2**20)
    return replace(decoder, parameters=parameters, num_slots=slots.num_slots), slots


def open_host_layers(
    config: EngineConfig, metadata: ModelMetadata, group: RankGroup | None
) -> HostLayers | None:
    """Allocate memory for the offloaded layers, or return None if there are none.

    Raises NotEnoughMemory if these layers do not fit in host memory, or the others on the device.
    """
    device = metadata.device
    sizes = weight_sizes(metadata.model, metadata.dtype, group, metadata.stage)
    placement = chosen_placement(config, sizes)
    if device.type == "cuda":
        check_room(config, sizes, placement, free_bytes(device))
    if placement is None:
        return None
    host_layers = HostLayers(placement, sizes.layers, device)
    what = described(placement, len(sizes.layers))
    _log.info("%s; made ready in %.1f s", what, host_layers.seconds)
    return host_layers


def described(placement: Placement, num_layers: int) -> str:
    """Describe a placement for the log."""
    return (
        f"weights in host memory: {len(placement.layers)} of {num_layers} layers, "
        f"{placement.host_bytes / GIB:.4g} GiB, which every step copies to the device; "
        f"{placement.freed_bytes / GIB:.4g} GiB of the device are freed"
    )


def check_room(
    config: EngineConfig, sizes: WeightSizes, placement: Placement | None, free: int
) -> None:
    """Raise NotEnoughMemory if the weights do not fit in `free` bytes of the device."""
    needed = sizes.on_device(placement)
    if needed <= free:
        return
    most = free * config.cache.memory_fraction  # above this, no block of KV would fit
    rooms = (part - sizes.others for part in (min(most, free * ROOM_PART), most))
    least = next(filter(None, (least_placement(sizes.layers, room) for room in rooms)), None)
    advice = (
        "and no cpu_offload_gb would make them fit"
        if least is None
        else f"cpu_offload_gb {as_gib(least.host_bytes)} would keep enough of them in host memory"
    )
    raise NotEnoughMemory(
        f"the weights take {needed / GIB:.1f} GiB of the device, of which {free / GIB:.1f} are "
        f"free: {advice}"
    )


def _parameters(
    config: EngineConfig,
    metadata: ModelMetadata,
    group: RankGroup | None,
    host_layers: HostLayers | None,
) -> Parameters:
    model, dtype, device = metadata.model, metadata.dtype, metadata.device
    stage = None if metadata.stage.is_whole else metadata.stage
    if config.model.load_format == "dummy":
        return dummy_parameters(model, dtype, device, DUMMY_SEED, group, host_layers, stage)
    directory = Path(config.model.model_dir)
    return load_parameters(directory, model, dtype, device, group, host_layers, stage)
