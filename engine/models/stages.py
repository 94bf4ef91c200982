"""The division of a model's layers into pipeline stages of about equal time.

    first stage   embedding, layers | layers | layers, final norm, head, draft head   last stage

The predicted cost of a stage is the bytes of weights that a step with many rows reads: the matrices
of its layers, and in the last stage also both heads. KV is not counted, because every layer reads
about the same amount. Commands that only make plans also use this module, so it does not import
torch.

Elsewhere: the process of each stage (`engine.ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from engine.models.config import ModelConfig, refuse_shared
from engine.models.errors import UnsupportedModel
from engine.models.layers.draft_head import DraftHeadConfig
from engine.models.layers.layer import LayerConfig, keeps_kv
from engine.models.modules import WeightFormat
from engine.models.weight_formats.plain import PLAIN, matrix_bytes
from storage.layouts.kv_layout import ITEM_BYTES
from storage.layouts.stage import Stage

if TYPE_CHECKING:
    from torch import Tensor


class Pipe(Protocol):
    """An interface of one stage's process to the neighbouring stages of the pipeline.

    Tensors are received in the order in which they are sent, with the same shape and dtype.
    """

    @property
    def stage(self) -> Stage:
        """The stage that this process computes."""
        ...

    def receive(self, into: Tensor) -> Tensor:
        """Receive the previous stage's output into `into` (T, H), contiguous. Return `into`."""
        ...

    def send(self, x: Tensor) -> None:
        """Send x (T, H), contiguous, to the next stage."""
        ...


def split_model(model: ModelConfig, num_stages: int, dtype: str) -> tuple[int, ...]:
    """Return the end of each stage's layers (`Stage.ends`).

    `dtype` is the weights' dtype in the spelling of configs. Raises UnsupportedModel.
    """
    if num_stages == 1:
        return (len(model.layers),)
    refuse_shared(model, f"pipeline_parallel {num_stages}")
    head = model.vocab_size * model.hidden_size * ITEM_BYTES[dtype]
    costs = layer_bytes(model.layers, model.weight_format, dtype)
    if model.draft_head is not None:
        head += head_bytes(model.draft_head, len(model.layers), model.weight_format, dtype)
    ends = split_layers(costs, head, num_stages)
    check_stages(model.layers, ends)
    return ends


def check_stages(layers: Sequence[LayerConfig], ends: tuple[int, ...]) -> None:
    """Check that every stage has the same kinds of memory: KV, recurrent states.

    This is required because all ranks must have the same number of blocks and of recurrent states.
    Raises UnsupportedModel.
    """
    kinds = {keeps_kv(layer) for layer in layers}
    for index in range(len(ends)):
        own = {keeps_kv(layers[one]) for one in Stage(index, ends).layers}
        if len(kinds) > 1 and own != kinds:
            raise UnsupportedModel(
                f"pipeline_parallel {len(ends)}: stage {index} has "
                f"{'no recurrent layer' if True in own else 'no layer with attention'}"
            )


# Cached: a plan makes the same call tens of times, and a mixture has up to 12,000 matrices.
@lru_cache(maxsize=64)
def layer_bytes(
    layers: tuple[LayerConfig, ...], weight_format: WeightFormat, dtype: str
) -> tuple[int, ...]:
    """Count the bytes of each layer's matrices."""
    return tuple(
        sum(matrix_bytes(weight_format, matrix, dtype) for matrix in layer.matrices(index))
        for index, layer in enumerate(layers)
    )


def head_bytes(head: DraftHeadConfig, index: int, weight_format: WeightFormat, dtype: str) -> int:
    """Count the bytes of a draft head's matrices. `index` is the number of its layer.

    The head's projection is unquantised.
    """
    kept_as = PLAIN if head.plain_layer else weight_format
    layer = sum(matrix_bytes(kept_as, one, dtype) for one in head.layer.matrices(index))
    return layer + 2 * head.layer.hidden_size**2 * ITEM_BYTES[dtype]


def split_layers(costs: Sequence[int], head: int, num_stages: int) -> tuple[int, ...]:
    """Find the `Stage.ends` that minimise the maximum cost of a stage.

    If several ends are equally good, the earliest are chosen.

    `costs` are the costs of the layers. `head` is the cost of the last stage's output heads. Raises
    UnsupportedModel if there are fewer layers than stages.
    """
    if num_stages > len(costs):
        raise UnsupportedModel(f"pipeline_parallel {num_stages}: the model has {len(costs)} layers")
    before = [0, *accumulate(costs)]

    @cache
    def best(first: int, stages: int) -> tuple[int, tuple[int, ...]]:
        """Return the smallest possible maximum cost of `stages` stages, and their ends.

        The stages divide the layers from `first` on.
        """
        if stages == 1:
            return before[-1] - before[first] + head, (len(costs),)
        splits = (
            (max(before[end] - before[first], rest[0]), (end, *rest[1]))
            for end in range(first + 1, len(costs) - stages + 2)
            for rest in [best(end, stages - 1)]
        )
        return min(splits)

    return best(0, num_stages)[1]
