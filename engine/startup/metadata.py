"""The metadata of a model that is known before loading: sizes, dtypes, this rank's part.

A model that cannot be served on these ranks is refused here, before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch

from engine.config import MOST_ADAPTER_RANK, MOST_ADAPTER_SLOTS, EngineConfig
from engine.models.checkpoints.stored_head import with_stored_head
from engine.models.checkpoints.weight_files import lacks_head
from engine.models.checks import check_geometry, check_ranks
from engine.models.config import ModelConfig, kv_stage, state_layout
from engine.models.errors import WrongSetting
from engine.models.freed_windows import MemoryLayouts, freed, pays, whole
from engine.models.grid import RankGrid
from engine.models.served.reading import read_model_config
from engine.models.served.registry import SERVED, ServedModels
from engine.models.shards import shard_model
from engine.models.stages import split_model
from engine.models.weight_formats.fp8 import Fp8Format
from engine.startup.device import check_fp8, dtype_name, resolve_device, resolve_dtype
from engine.startup.memory.pool_size import CPU_BATCH_TOKENS, CUDA_BATCH_TOKENS
from kernels.launch.capability import capability
from storage.layouts.kv_layout import FP8, KvLayout
from storage.layouts.stage import Stage
from storage.layouts.state_layout import StateLayout
from storage.layouts.window_layout import SlotLayout, WindowLayout

# The devices on which the setting "auto" may free windows. On a GPU, this halved the tokens per
# second of short sequences, because each sequence takes two windows (decision 253).
FREES_BY_ITSELF = ("cpu",)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model that is known before loading."""

    model: ModelConfig
    part: ModelConfig  # the model with the sizes of one rank; equal to `model` if there is one rank
    device: torch.device
    dtype: torch.dtype
    grid: RankGrid
    stage: Stage  # the layers that this rank computes; without stages, all layers
    layout: KvLayout
    states: SlotLayout | None  # layout of this rank's recurrent states or ring buffers, if any
    share: Fraction
    has_head: bool  # False: the files have no output projection, so only embeddings are served
    model_len: int
    batch_tokens: int  # tokens of the largest step; with stages, several steps run at the same time

    @property
    def state_blocks(self) -> int:
        """The size of a recurrent state or ring buffer in blocks, or 0 without them."""
        return 0 if self.states is None else self.states.blocks(self.layout.block_bytes)

    @property
    def rings(self) -> WindowLayout | None:
        """The layout of this rank's ring buffers, or None if blocks have the KV of all layers."""
        return self.states if isinstance(self.states, WindowLayout) else None


def read_metadata(
    config: EngineConfig, served: ServedModels = SERVED, rank: int = 0
) -> ModelMetadata:
    """Read the metadata of `config`'s model without loading the model. Raises ModelError."""
    grid = RankGrid(config.ranks.tensor_parallel, config.ranks.pipeline_parallel)
    model_dir = Path(config.model.model_dir)
    model = read_model_config(model_dir, served, config.model.quantization)
    has_head = model.tied or config.model.load_format == "dummy" or not lacks_head(model_dir)
    if not has_head:  # use the embedding as the missing output head: its logits are never read
        model = replace(model, tied=True)
    model = _with_draft_head(config, model)
    check_geometry(model, config.cache.block_size)
    check_ranks(model, config.cache.block_size, grid)
    _check_adapters(config)
    device = resolve_device(config.process.device, rank, grid.num_ranks)
    dtype = resolve_dtype(config.model.dtype, device, model.dtype)
    kv_dtype = FP8 if config.cache.kv_dtype == "fp8" else dtype_name(dtype)
    weights = ["fp8 weights"] if isinstance(model.weight_format, Fp8Format) else []
    check_fp8(capability(device), [*weights, *(["kv_dtype fp8"] if kv_dtype == FP8 else [])])
    stage = Stage(grid.stage_of(rank), split_model(model, grid.stages, dtype_name(dtype)))
    kept = _kept(config, model, grid, device, (kv_dtype, dtype_name(dtype)))
    of_stage = kept.kv.stage_of(kv_stage(model.layers_with_memory, stage))
    layout = of_stage.slice_of(grid.part_of(rank), grid.tensor)
    usual = CPU_BATCH_TOKENS if device.type == "cpu" else CUDA_BATCH_TOKENS
    model_len = _model_len(config, model)
    model = model.for_positions(model_len)
    part = shard_model(model, grid.tensor)
    states: SlotLayout | None = _states_of(part, stage, kept.kv, grid, dtype_name(dtype))
    if isinstance(kept.states, WindowLayout):
        states = kept.states.slice_of(grid.part_of(rank), grid.tensor, layout.block_bytes)
    return ModelMetadata(
        model=model,
        part=part,
        device=device,
        dtype=dtype,
        grid=grid,
        stage=stage,
        layout=layout,
        states=states,
        share=Fraction(of_stage.block_bytes, kept.kv.block_bytes) / grid.tensor,
        has_head=has_head,
        model_len=model_len,
        batch_tokens=config.steps.max_batch_tokens or usual // grid.stages,
    )


def _states_of(
    part: ModelConfig, stage: Stage, kv: KvLayout, grid: RankGrid, dtype: str
) -> StateLayout | None:
    """Return the layout of a stage's recurrent state, padded to the largest of all stages."""
    own = state_layout(part.layers[stage.first : stage.end], dtype)
    if own is None or stage.is_whole:
        return own
    blocks = 0
    for index in range(len(stage.ends)):
        one = Stage(index, stage.ends)
        beside = kv.stage_of(kv_stage(part.layers_with_memory, one)).slice_of(0, grid.tensor)
        theirs = state_layout(part.layers[one.first : one.end], dtype)
        blocks = max(blocks, 0 if theirs is None else theirs.blocks(beside.block_bytes))
    return replace(own, least_blocks=blocks)


def _kept(
    config: EngineConfig,
    model: ModelConfig,
    grid: RankGrid,
    device: torch.device,
    dtypes: tuple[str, str],
) -> MemoryLayouts:
    """Choose the layouts of blocks and ring buffers. `dtypes` are of KV and model.

    Raises WrongSetting.
    """
    wish, size = config.cache.windows, config.cache.block_size
    kept_whole = whole(model.layers_with_memory, *dtypes, size)
    if wish == "whole":
        return kept_whole
    given = freed(model.layers_with_memory, dtypes[0], size)
    obstacle = _obstacle(config, model, grid)
    if given is not None and obstacle is None:
        by_itself = device.type in FREES_BY_ITSELF and pays(given, kept_whole.kv)
        if wish == "freed" or by_itself:
            return given
    if wish == "freed":
        why = obstacle or "the model has no layers with a window beside others without one"
        raise WrongSetting(f"windows freed: {why}")
    return kept_whole


def _obstacle(config: EngineConfig, model: ModelConfig, grid: RankGrid) -> str | None:
    if grid.stages > 1:
        return "stages of a pipeline keep windows whole"
    if config.process.role != "both":
        return "engines with roles keep windows whole"
    return "a head that drafts keeps windows whole" if model.draft_head is not None else None


def _with_draft_head(config: EngineConfig, model: ModelConfig) -> ModelConfig:
    if config.steps.drafts == "off" or config.model.load_format == "dummy":
        return model
    return with_stored_head(model, Path(config.model.model_dir))


def _check_adapters(config: EngineConfig) -> None:
    model = config.model
    if model.adapters_dir is None:
        return
    if not Path(model.adapters_dir).is_dir():
        raise WrongSetting(f"adapters_dir {model.adapters_dir} is no folder")
    if not 0 < model.adapter_slots <= MOST_ADAPTER_SLOTS:
        raise WrongSetting(f"adapter_slots is not 1 to {MOST_ADAPTER_SLOTS}")
    if not 0 < model.adapter_rank <= MOST_ADAPTER_RANK:
        raise WrongSetting(f"adapter_rank is not 1 to {MOST_ADAPTER_RANK}")


def _model_len(config: EngineConfig, model: ModelConfig) -> int:
    asked = config.model.max_model_len
    if asked is not None and asked > model.max_positions:
        raise WrongSetting(f"max_model_len {asked}: the model has {model.max_positions} positions")
    return asked or model.max_positions
