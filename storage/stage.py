"""The layers of a model that one stage of a pipeline has, in weights and in every block.

    layers   0 ............ 16 | 17 ........ 31        of two stages, whose `ends` are (17, 32)

Knows: numbers of layers. Does not know: what a layer costs (`engine.models.stages`), or which
process is which stage (`engine.models.grid`). No torch: commands that only plan read it too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One of several stages that have a model's layers between them, in order.

    `ends` has, of each stage, the layer after its last. Raises ValueError unless they ascend and
    this is one of the stages.
    """

    index: int  # 0: the one with the first layer
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.ends):
            raise ValueError(f"there is no stage {self.index} of {len(self.ends)}")
        if list(self.ends) != sorted({*self.ends}):
            raise ValueError(f"stages cannot end at layers {self.ends}")

    @property
    def first(self) -> int:
        """Number of its first layer."""
        return self.ends[self.index - 1] if self.index else 0

    @property
    def end(self) -> int:
        """The layer after its last."""
        return self.ends[self.index]

    @property
    def layers(self) -> range:
        """Numbers of its layers."""
        return range(self.first, self.end)

    @property
    def is_first(self) -> bool:
        """True if tokens are embedded here."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True if logits are computed here."""
        return self.index == len(self.ends) - 1

    @property
    def is_whole(self) -> bool:
        """True if it has all layers."""
        return len(self.ends) == 1


def whole(num_layers: int) -> Stage:
    """Return the one stage of a model that is not divided so."""
    return Stage(0, (num_layers,))
