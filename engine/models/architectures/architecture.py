"""The interface of an architecture, which reads config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from engine.models.config import ModelConfig, ModelSizes
from engine.models.layers.layer import LayerConfig


class Architecture(Protocol):
    """An interface that reads config.json for one name in `architectures`."""

    @property
    def examples(self) -> tuple[str, ...]:
        """The names of popular models of this architecture."""
        ...

    def read(self, path: Path) -> ModelConfig:
        """Read a config.json into a model with unquantised weights and no end-of-sequence tokens.

        Raises BadConfig for absent or malformed fields, UnsupportedModel for well-formed fields
        whose values are not served.
        """
        ...

    def sizes(self, path: Path) -> ModelSizes:
        """Read the sizes for planning, even of a model that is not served. Raises BadConfig."""
        ...

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        """Read the layers for planning. Raises ModelError."""
        ...
