"""The mixer, the part of a layer that reads earlier tokens: attention, or a recurrence.

    attention     keys and values of every token, in blocks; a token reads those of earlier tokens
    latents       one small vector of every token, from which keys and values are computed
    recurrence    a state of fixed size, which one token after the other updates

A mixer computes in two halves. `enter` reads all tokens of a step, and writes KV or recurrent
states for later steps. `leave` computes the mixer's output. In the last layer, `leave` computes
only the output of the tokens that are needed. At import, torch is needed only for types, as in
`modules`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from engine.models.errors import UnsupportedModel
from engine.models.layers.norms import RmsNormConfig
from engine.models.layers.rope import RopeConfig
from engine.models.modules import Allocator, LinearConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.attention.batch_layout import BatchLayout
    from kernels.linear.fp8_rows import Fp8Rows, Scaling
    from kernels.ops import Ops
    from kernels.recurrence.state_rows import StateRows
    from storage.layouts.state_layout import StateShape
    from storage.pools.state_pool import LayerState


class KvMemory(NamedTuple):
    """The memory of an attention layer: KV, table of cosines and sines, additional input."""

    # (blocks, 2, kv heads, block size, head dim); 1 instead of 2 if keys contain the values.
    kv: Tensor
    cos_sin: Tensor  # (positions, rotated) float32
    query_scales: Tensor | None = None  # (positions, 1, 1) float32; None: all are 1
    # (T, P), the layer's additional input for each token (`layer_inputs`)
    own_input: Tensor | None = None


class StateMemory(NamedTuple):
    """The memory of a recurrent layer: its states in the pool, and which states each row uses."""

    state: LayerState
    rows: StateRows


Memory = KvMemory | StateMemory
Entered = tuple["Tensor", ...]  # results of `enter` that `leave` reads; first dimension: tokens


class LayerStep(NamedTuple):
    """The ops, rows and memory with which a layer computes a step."""

    ops: Ops
    layout: BatchLayout
    memory: Memory


def of_outputs(entered: Entered, outputs: Tensor | None) -> Entered:
    """Return the results for the tokens `outputs` (S,), or for all tokens if it is None."""
    if outputs is None:
        return entered
    return tuple(one.index_select(0, outputs) for one in entered)


def check_divides(num_ranks: int, field: str, size: int) -> None:
    """Raise UnsupportedModel if a config field's size is not divisible by `num_ranks`."""
    if size % num_ranks:
        raise UnsupportedModel(f"tensor_parallel {num_ranks} does not divide {field} {size}")


class TokenKeys(NamedTuple):
    """The sizes of a layer's KV per token: keys of `heads` x `size`, and values if `has_values`."""

    heads: int
    size: int
    has_values: bool = True  # False: keys contain the values


class Mixer(ABC):
    """A mixer with its tensors.

    A mixer is a frozen dataclass. `walk` finds its modules in the fields.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def takes_fp8(self) -> Scaling | None:
        """The quantisation that the input may have, as in `Linear.takes_fp8`."""

    @abstractmethod
    def enter(self, step: LayerStep, x: Tensor | Fp8Rows, dtype: torch.dtype) -> Entered:
        """Compute the inputs of `leave` from `x` (T, H), and write KV or recurrent states.

        `dtype` is the dtype of the model.
        """

    @abstractmethod
    def leave(self, step: LayerStep, entered: Entered, outputs: Tensor | None) -> Tensor:
        """Compute the output (T, H), complete or in parts.

        If `outputs` (S,) is given, compute only the output (S, H) of these tokens.
        """


class MixerConfig(ABC):
    """The config of a mixer, without tensors.

    A config is a frozen dataclass, so that layers can be compared.
    """

    __slots__ = ()
    place: str

    @abstractmethod
    def num_weights(self, hidden: int) -> int:
        """Count the weights used per token, without norms and biases."""

    @abstractmethod
    def matrices(self, prefix: str, hidden: int) -> Iterator[LinearConfig]:
        """Yield all matrices, whose names begin with `prefix`."""

    @abstractmethod
    def build(
        self, prefix: str, hidden: int, norm: RmsNormConfig, new: Allocator, *, in_parts: bool
    ) -> Mixer:
        """Build the mixer.

        With `in_parts`, the output consists of parts, which its reader adds. `norm` is the config
        of the layer's norms, including those of heads.
        """

    @abstractmethod
    def check_shard(self, num_ranks: int) -> None:
        """Raise UnsupportedModel if the heads cannot be divided among the ranks."""

    @abstractmethod
    def shard(self, num_ranks: int) -> Self:
        """Return one rank's part. Sizes must be divisible. The outputs of all ranks are summed."""


class KvConfig(MixerConfig):
    """The config of a mixer that stores keys, and usually values, of every token."""

    __slots__ = ()
    num_heads: int
    rope: RopeConfig | None
    window: int | None  # number of keys that a token attends to, including its own; None: all
    kv_of: int | None = None  # index of the layer whose KV is read; None: this layer

    @property
    @abstractmethod
    def kept(self) -> TokenKeys:
        """The sizes that are stored per token."""

    @property
    @abstractmethod
    def rope_size(self) -> int:
        """The size of the heads that `rope` rotates."""

    @property
    @abstractmethod
    def attention_flops(self) -> float:
        """The FLOPs of attention per token and per earlier position."""

    @property
    @abstractmethod
    def fields(self) -> str:
        """The fields of config.json that `check` checks, with their values, as text."""

    @abstractmethod
    def check(self, block_size: int) -> None:
        """Raise UnsupportedShape if the kernels do not support a size."""

    @abstractmethod
    def with_rope(self, rope: RopeConfig) -> Self:
        """Return this config with another rope."""


class RecurrentConfig(MixerConfig):
    """The config of a mixer with a recurrent state instead of keys and values."""

    __slots__ = ()

    def num_weights(self, hidden: int) -> int:
        return sum(one.size_out * one.size_in for one in self.matrices("", hidden))

    @property
    @abstractmethod
    def state(self) -> StateShape:
        """The shape of the recurrent state of one layer."""

    @abstractmethod
    def check(self) -> None:
        """Raise UnsupportedShape if the kernels do not support a size."""
