"""Whether a model can be served, asked before any process is started.

What the files tell is known in a moment, and is one line; the engine would need seconds to say it.
"""

from __future__ import annotations

from pathlib import Path

from cli.errors import BadSetting, ModelRefused
from cli.serving.model_source import ModelSource
from engine.config import EngineConfig
from engine.models.checks import check_served
from engine.models.config import ModelConfig
from engine.models.errors import ModelNotServed
from gateway.prompts.sampling_defaults import GenerationConfigBroken, read_sampling_defaults


def check_model(source: ModelSource, engine: EngineConfig) -> None:
    """ModelRefused where an engine of these settings would end; BadSetting where they are wrong."""
    dummy = engine.load_format == "dummy"
    model = served_model(source, block_size=engine.block_size, has_weights=not dummy)
    asked = engine.max_model_len
    if asked is not None and asked > model.max_positions:
        raise BadSetting("--max-model-len", f"{asked}: the model has {model.max_positions}")


def check_defaults(directory: Path) -> None:
    """ModelRefused where generation_config.json has a default that no request could have."""
    try:
        read_sampling_defaults(directory)
    except GenerationConfigBroken as error:
        raise ModelRefused(str(error)) from error


def served_model(
    source: ModelSource, *, block_size: int = 16, has_weights: bool = True
) -> ModelConfig:
    """The model; ModelRefused with the line that a start would end with."""
    try:
        return check_served(source.directory, block_size=block_size, has_weights=has_weights)
    except ModelNotServed as error:
        raise ModelRefused(f"{source.name} cannot be served: {error}") from error
