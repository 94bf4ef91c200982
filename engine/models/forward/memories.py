"""The memory of a decoder's layers in one step: KV, recurrent states, or windows' ring buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.models.layers.mixer import KvMemory, Memory, StateMemory
from kernels.attention.batch_layout import BatchLayout
from storage.pools.state_pool import StepStates
from storage.pools.window_pool import StepWindows

StepMemory = StepStates | StepWindows | None  # None: all layers have their KV in the pool


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The location of a layer's memory: its index among the stage's layers with the same kind.

    A layer that reads another layer's KV has the index of that layer. `cos_sin` (positions,
    rotated) float32 is the rope table of a layer with attention.
    """

    index: int
    cos_sin: Tensor | None
    query_scales: Tensor | None = None  # (positions, 1, 1) float32; None: queries are not scaled
    in_ring: bool = False


@dataclass(frozen=True, slots=True)
class Memories:
    """The memory of all layers in one step."""

    places: Mapping[int, LayerPlace]
    pool: Sequence[Tensor]
    states: StepMemory
    # (T, layers, P): additional inputs of all layers (`layer_inputs`)
    own_inputs: Tensor | None = None

    def of(self, layer: int) -> Memory:
        """Return the memory of a layer, by its number in the model."""
        place = self.places[layer]
        if place.cos_sin is not None:
            own = None if self.own_inputs is None else self.own_inputs[:, layer]
            pool = self._windows.layers if place.in_ring else self.pool
            return KvMemory(pool[place.index], place.cos_sin, place.query_scales, own)
        assert isinstance(self.states, StepStates), "a recurrent layer has states"
        return StateMemory(self.states.layers[place.index], self.states.rows)

    def layout_of(self, layer: int, layout: BatchLayout) -> BatchLayout:
        """Return the layout for a layer: that of the ring buffers if they have the layer's KV."""
        return self._windows.layout if self.places[layer].in_ring else layout

    @property
    def _windows(self) -> StepWindows:
        assert isinstance(self.states, StepWindows), "windows that are freed have rings"
        return self.states
