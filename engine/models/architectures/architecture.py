"""The interface of an architecture: it reads config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from engine.models.config import ModelConfig, ModelSizes
from engine.models.layers.layer import LayerConfig


class Architecture(Protocol):
    """An interface to a reader of the config.json files that name this architecture."""

    @property
    def examples(self) -> tuple[str, ...]:
        """The names of popular models of this architecture."""
        ...

    def read(self, path: Path) -> ModelConfig:
        """Read the model's config from config.json, but neither weight format nor end tokens.

        Raises BadConfig for absent or malformed fields, UnsupportedModel for valid fields whose
        values are not served.
        """
        ...

    def sizes(self, path: Path) -> ModelSizes:
        """Read the sizes for planning. Works for unserved models too. Raises BadConfig."""
        ...

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        """Read the layers for planning. Raises ModelError."""
        ...
