"""Weights that stay in host memory, and the time to copy them, for `ratoon plan`.

`engine.offload.placement` chooses the layers, as in an engine. Norms, biases, and the time of the
output head after the last layer are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from cli.plan.decoder import DecoderCounts
from cli.plan.machine import MachineModel
from cli.plan.options import MemoryFlags
from engine.offload.placement import Placement, place, step_seconds

STEP_TOKENS = 8192


def placement_of(decoder: DecoderCounts, memory: MemoryFlags) -> Placement | None:
    """Choose the layers that each GPU keeps in host memory, if any. Raises WrongSetting."""
    if not memory.cpu_offload_gb:
        return None
    return place(decoder.of_rank(memory.tensor_parallel).bytes_by_layer, memory.cpu_offload_gb)


@dataclass(frozen=True, slots=True)
class LayerCopies:
    """The seconds in which each offloaded layer's weights are copied, by layer number.

    `num_layers` counts all layers, including those that are not copied.
    """

    num_layers: int
    seconds: Mapping[int, float]

    @property
    def step_seconds(self) -> float:
        """The seconds of all copies of a step."""
        return sum(self.seconds.values())

    def beside(self, computed: float, steps: int = 1) -> float:
        """Estimate the seconds of steps: `computed` seconds of computing, and waits for copies."""
        each = [computed / steps / self.num_layers] * self.num_layers
        return steps * step_seconds(each, self.seconds)

    def beside_prompts(self, computed: float, tokens: int) -> float:
        """Estimate the seconds to prefill `tokens` tokens in as few steps as possible."""
        return self.beside(computed, ceil(tokens / STEP_TOKENS))


def copies_of(
    decoder: DecoderCounts, memory: MemoryFlags, machine: MachineModel, placement: Placement
) -> LayerCopies:
    """Estimate the copies' seconds on `machine`, one GPU. Each GPU has its own link."""
    sizes = decoder.of_rank(memory.tensor_parallel).bytes_by_layer
    rate = machine.host_gb_s * 1e9
    return LayerCopies(len(sizes), {index: sizes[index] / rate for index in placement.layers})
