"""The layers of a model that belong to one pipeline stage.

    layers   0 ............ 16 | 17 ........ 31        of two stages, whose `ends` are (17, 32)

This module needs no torch, because commands that only plan read it too.

`engine.models.stages` computes the costs of layers, and `engine.models.grid` assigns stages to
processes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage. Several stages divide a model's layers in order.

    `ends` has, for each stage, the layer after its last layer. Raises ValueError unless `ends`
    ascends and `index` is a stage.
    """

    index: int  # index of the stage, 0 for the stage with the first layer
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.ends):
            raise ValueError(f"there is no stage {self.index} of {len(self.ends)}")
        if list(self.ends) != sorted({*self.ends}):
            raise ValueError(f"stages cannot end at layers {self.ends}")

    @property
    def first(self) -> int:
        """The number of the stage's first layer."""
        return self.ends[self.index - 1] if self.index else 0

    @property
    def end(self) -> int:
        """The number of the layer after the stage's last layer."""
        return self.ends[self.index]

    @property
    def layers(self) -> range:
        """The numbers of the stage's layers."""
        return range(self.first, self.end)

    @property
    def is_first(self) -> bool:
        """True if the stage embeds tokens."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True if the stage computes logits."""
        return self.index == len(self.ends) - 1

    @property
    def is_whole(self) -> bool:
        """True if the stage has all layers."""
        return len(self.ends) == 1


def whole(num_layers: int) -> Stage:
    """Return the only stage of a model without a pipeline."""
    return Stage(0, (num_layers,))
