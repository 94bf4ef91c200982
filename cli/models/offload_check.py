"""A check, before the start, that host memory has room for an engine's weights.

The engine would need seconds to report the error. This check counts only the matrices of layers,
without norms and biases. So the engine refuses all that this check refuses, and may refuse more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.errors import BadSetting
from engine.config import EngineConfig
from engine.models.config import SERVED_DTYPES, ModelConfig
from engine.models.errors import WrongSetting
from engine.models.grid import RankGrid
from engine.models.shards import shard_layers
from engine.models.stages import layer_bytes, split_model
from engine.offload.placement import GIB, as_gib, place
from storage.layouts.stage import Stage

if TYPE_CHECKING:
    from cli.models.machine import Machine

_FLAG = "--cpu-offload-gb"
_MORE = 1.05  # factor on a layer's matrices that covers its norms and biases


def check_offload(model: ModelConfig, engine: EngineConfig, of: Machine | None) -> None:
    """Raise BadSetting for an impossible --cpu-offload-gb.

    An impossible offload is larger than all layers, smaller than a layer, or too large for the
    host. `of` is this machine with the memory that the engine may take, if the engine runs here.
    """
    if not engine.model.cpu_offload_gb:
        return
    grid = RankGrid(engine.ranks.tensor_parallel, engine.ranks.pipeline_parallel)
    sizes_by_stage = _sizes_by_stage(model, engine, _dtype(model, engine, of))
    kept = [_host_bytes(sizes, engine.model.cpu_offload_gb) for sizes in sizes_by_stage]
    needed = sum(kept[grid.stage_of(rank)] for rank in range(grid.num_ranks))
    if of is not None and needed > of.free_bytes:
        raise BadSetting(
            _FLAG,
            f"{engine.model.cpu_offload_gb:g}: {as_gib(needed)} GiB of weights would be in host "
            f"memory, of which {of.free_bytes / GIB:.4g} GiB are free",
        )


def _host_bytes(sizes: list[int], gib: float) -> int:
    """Count the bytes of a rank's weights in host memory, without norms.

    Raises BadSetting if no choice of layers frees `gib` GiB.
    """
    total = sum(sizes)
    wanted = gib if gib * GIB > _MORE * total else min(gib, total / GIB)
    try:
        return place(sizes, wanted).host_bytes
    except WrongSetting as error:
        said = str(error).removeprefix("cpu_offload_gb ")
        raise BadSetting(_FLAG, said) from error


def _sizes_by_stage(model: ModelConfig, engine: EngineConfig, dtype: str) -> list[list[int]]:
    sizes = layer_bytes(
        shard_layers(model.layers, engine.ranks.tensor_parallel), model.weight_format, dtype
    )
    ends = split_model(model, engine.ranks.pipeline_parallel, dtype)
    return [
        [sizes[index] for index in Stage(place, ends).layers]
        for place in range(engine.ranks.pipeline_parallel)
    ]


def _dtype(model: ModelConfig, engine: EngineConfig, of: Machine | None) -> str:
    if engine.model.dtype != "auto":
        return engine.model.dtype
    on_gpu = engine.process.device == "cuda" or (
        engine.process.device == "auto" and of is not None and bool(of.gpus)
    )
    return model.dtype or "bfloat16" if on_gpu else SERVED_DTYPES[0]
