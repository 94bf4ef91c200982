"""`/v1/models`: the one model this gateway serves.

Knows: its name. Does not know: the model.
"""

from __future__ import annotations

from engine.interface import Engine
from gateway.errors import NotFound
from gateway.openai.replies import Model, ModelList


class ModelCard:
    """The one model of `/v1/models`."""

    def __init__(self, name: str, engine: Engine, created: int) -> None:
        self.name = name
        self._engine = engine
        self._created = created

    def model(self) -> Model:
        """The model, with the context length of its engine."""
        welcome = self._engine.welcome
        return Model(
            id=self.name,
            created=self._created,
            owned_by="ratoon",
            max_model_len=None if welcome is None else welcome.max_model_len,
        )

    def all(self) -> ModelList:
        """All models: this one."""
        return ModelList(data=[self.model()])

    def check(self, name: str | None) -> None:
        """NotFound for any name but the model's; None means whatever is served."""
        if name is not None and name != self.name:
            raise NotFound(
                "there is no model of that name; see /v1/models",
                code="model_not_found",
                param="model",
            )
