"""The draft head in a model checkpoint's files.

Published files have no head, or a head in the model's weight format, or an unquantised head. The
names of the stored tensors show the case.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.models.checkpoints.weight_files import stored_names
from engine.models.config import ModelConfig
from engine.models.weight_formats.fp8 import Fp8Format

# Endings of tensor names that only quantised matrices have.
QUANTISED = (".weight_scale", ".weight_scale_inv", ".weight_packed", ".qweight")


def with_stored_head(model: ModelConfig, model_dir: Path) -> ModelConfig:
    """Return the model with the draft head of its files, if any.

    Raises the errors of `weight_files`.
    """
    head = model.possible_head
    if head is None:
        return model
    names = [model.names.own(name) for name in stored_names(model_dir)]
    projection = [name for name in names if name.startswith(f"{head.names.projection}.")]
    layer = [
        name
        for name in names
        if name.startswith(f"model.layers.{len(model.layers)}.") and name not in projection
    ]
    if not projection or not layer:
        return model
    online = isinstance(model.weight_format, Fp8Format) and model.weight_format.online
    stored = replace(
        head,
        plain_projection=not _are_quantised(projection),
        plain_layer=not online and not _are_quantised(layer),
    )
    return replace(model, draft_head=stored)


def _are_quantised(names: list[str]) -> bool:
    return any(name.endswith(QUANTISED) for name in names)
