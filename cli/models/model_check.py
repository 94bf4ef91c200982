"""A check, before any process is started, that a model can be served.

This check reports an error in the files in one line at once. The engine would need seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import BadSetting, ModelRefused
from cli.models.model_source import ModelSource, resolve
from cli.models.offload_check import check_offload
from engine.config import EngineConfig, LoadFormat
from engine.models.checks import check_served
from engine.models.config import ModelConfig
from engine.models.errors import ModelNotServed
from engine.models.grid import RankGrid
from gateway.prompts.sampling_defaults import GenerationConfigBroken, read_sampling_defaults

if TYPE_CHECKING:
    from cli.models.machine import Machine


def checked_source(
    model: str,
    engine: EngineConfig,
    resolved: Callable[[str, LoadFormat], ModelSource] = resolve,
    *,
    of: Machine | None = None,
) -> ModelSource:
    """Find the directory of `model`, and check that its files are complete and can be served.

    The model's config and the other small files are checked before the weights are downloaded. `of`
    describes this machine, if the engine runs here. Raises ModelNotFound, BadSetting if a setting
    does not fit the model, and ModelRefused if an engine with these settings could not start.
    """
    described = resolved(model, "dummy")
    config = served_model(described, engine, has_weights=False)
    asked = engine.model.max_model_len
    if asked is not None and asked > config.max_positions:
        raise BadSetting("--max-model-len", f"{asked}: the model has {config.max_positions}")
    check_offload(config, engine, of)
    source = resolved(model, engine.model.load_format)
    served_model(source, engine, has_weights=engine.model.load_format != "dummy")
    return source


def check_defaults(directory: Path) -> None:
    """Raise ModelRefused for a default in generation_config.json that no request could set."""
    try:
        read_sampling_defaults(directory)
    except GenerationConfigBroken as error:
        raise ModelRefused(str(error)) from error


def served_model(source: ModelSource, engine: EngineConfig, *, has_weights: bool) -> ModelConfig:
    """Read the model. Raises ModelRefused with the error that an engine's start would give."""
    try:
        return check_served(
            source.directory,
            block_size=engine.cache.block_size,
            has_weights=has_weights,
            quantization=engine.model.quantization,
            grid=RankGrid(engine.ranks.tensor_parallel, engine.ranks.pipeline_parallel),
        )
    except ModelNotServed as error:
        raise ModelRefused(f"{source.name} cannot be served: {error}") from error
