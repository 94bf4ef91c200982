"""The building of a decoder from its config, its parameters and the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.forward.decoder import Decoder
from engine.models.forward.memories import LayerPlace
from engine.models.freed_windows import window_of
from engine.models.layers.latent import LatentAttention
from engine.models.layers.layer import DecoderLayer, LayerConfig, keeps_kv
from engine.models.layers.mixer import KvConfig, RecurrentConfig
from engine.models.layers.rope import RopeConfig, query_scales, rope_table
from engine.models.parameters import Parameters
from engine.models.rank_group import RankGroup
from engine.models.stages import Pipe
from kernels.ops import Ops


@torch.inference_mode()
def _with_plain_latents(parameters: Parameters) -> Parameters:
    """Dequantise the matrices that latent attention absorbs, once instead of in each step.

    If layers are offloaded to host memory, this is done in each step. Absorbed products never
    quantise their inputs, so the choice to absorb does not depend on the weight format.
    """
    if parameters.homes is not None:
        return parameters
    layers, head = tuple(map(_with_plain_latent, parameters.layers)), parameters.draft_head
    if head is not None:
        head = replace(head, layer=_with_plain_latent(head.layer))
    return replace(parameters, layers=layers, draft_head=head)


def _with_plain_latent(layer: DecoderLayer) -> DecoderLayer:
    if not isinstance(layer.mixer, LatentAttention):
        return layer
    return replace(layer, mixer=layer.mixer.dequantised())


def build_decoder(
    config: ModelConfig,
    parameters: Parameters,
    ops: Ops,
    num_positions: int,
    group: RankGroup | None = None,
    pipe: Pipe | None = None,
    *,
    frees_windows: bool = False,
) -> Decoder:
    """Build a decoder for sequences of up to `num_positions` tokens, on the parameters' device.

    In a `group`, `config` has the sizes of this rank. With stages, `config` has the layers of all
    stages. With `frees_windows`, the KV of layers with a window is in ring buffers.
    """
    parameters = _with_plain_latents(parameters)
    first, stop = parameters.layers[0].index, parameters.layers[-1].index + 1
    computed = list(enumerate(config.layers[first:stop], start=first))
    if config.draft_head is not None and parameters.draft_head is not None:
        computed.append((len(config.layers), config.draft_head.layer))
    device = parameters.embedding.device
    tables = {
        (rope, size): rope_table(rope, size, num_positions, device)
        for rope, size in {(one.rope, one.rope_size) for one in config.attentions}
    }
    scales = {rope: query_scales(rope, num_positions, device) for rope, _ in tables}
    places = _places(computed, tables, scales, frees_windows=frees_windows)
    return Decoder(config, parameters, places, ops, group=group, pipe=pipe)


def _places(
    computed: Sequence[tuple[int, LayerConfig]],
    tables: Mapping[tuple[RopeConfig | None, int], Tensor],
    scales: Mapping[RopeConfig | None, Tensor | None],
    *,
    frees_windows: bool,
) -> dict[int, LayerPlace]:
    in_ring = {
        index: frees_windows and window_of(layer) is not None
        for index, layer in computed
        if keeps_kv(layer)
    }
    keeping = {one: [index for index in in_ring if in_ring[index] is one] for one in (False, True)}
    places, recurrent = dict[int, LayerPlace](), 0
    for index, layer in computed:
        one = layer.mixer
        if isinstance(one, KvConfig):
            kept = index if one.kv_of is None else one.kv_of
            table, is_in_ring = tables[one.rope, one.rope_size], in_ring[kept]
            place = keeping[is_in_ring].index(kept)
            places[index] = LayerPlace(place, table, scales[one.rope], is_in_ring)
        elif isinstance(one, RecurrentConfig):
            places[index] = LayerPlace(recurrent, None)
            recurrent += 1
    return places
