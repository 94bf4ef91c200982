"""The memory for the adapters of a layer's experts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.adapter_experts import by_expert, stacked
from engine.models.modules import ExpertsConfig
from kernels.adapters.experts import ExpertSlots, first_slot
from kernels.adapters.slots import SlotMatrices


@dataclass(frozen=True, slots=True)
class ExpertsRoom:
    """The matrices of all adapters for the experts of one layer."""

    config: ExpertsConfig
    slots: ExpertSlots

    @classmethod
    def empty(
        cls, config: ExpertsConfig, num_adapters: int, most_rank: int, like: Tensor
    ) -> ExpertsRoom:
        """Allocate memory for `num_adapters`, with the dtype and device of `like`."""
        count = 1 + num_adapters * config.num_experts
        inner, down = (
            SlotMatrices.zeros(count, [rows for _, rows in one.rows], one.size_in, most_rank, like)
            for one in stacked(config)
        )
        return cls(config, ExpertSlots(inner, down))

    def load(self, slot: int, adapter: Adapter) -> None:
        """Clear the slot, then copy the adapter's matrices to it."""
        count = self.config.num_experts
        first = first_slot(slot, count)
        for matrix, room in zip(
            stacked(self.config), (self.slots.gate_up, self.slots.down), strict=True
        ):
            room.clear(first, count)
            for part, (name, _) in enumerate(matrix.rows):
                pair = adapter.matrices.get(name)
                if pair is not None:
                    room.load_several(first, part, *by_expert(*pair, count))
