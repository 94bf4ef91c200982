"""The layout of a KV block by groups of layers. Only this module computes a block's bytes.

    block    | layer 0          | layer 1          | ... | last layer       |
    layer    | keys    | values | scales | up to a multiple of 16 bytes     |
    latents  | keys alone       | scales |     for layers whose values are a part of the keys

Layers lie in the model's order, whatever their group. So a block is one contiguous run in every
tier and one record on disk. The last bytes of a block are the layers that are computed last.

If several ranks share a model, each rank keeps a slice of every block: some KV heads of every
layer. Each pipeline stage keeps its own layers, counted from 0. Slot i of a tier is the same block
on all ranks.

This module needs no torch, because commands that only plan read it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.errors import UnevenSlices
from storage.layouts.stage import Stage

FP8 = "float8_e4m3fn"
# bytes of a number, by the dtype names of configs
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, FP8: 1}
ALIGNMENT = 16  # bytes that kernels load at once, at least as wide as any dtype


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers with keys and values of one shape.

    `layers` are counted from 0 among the model's layers that have keys.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    dtype: str  # type of keys and values, in ITEM_BYTES
    window: int | None = None  # number of tokens that a query sees, with its own token; None: all
    scale_bytes: int = 0  # bytes of one layer's scales in a block
    has_values: bool = True  # False: values are a part of the keys, and are not stored separately

    @property
    def planes(self) -> int:
        """The number of tensors of a layer: 2 for keys and values, 1 for keys alone."""
        return 1 + self.has_values


@dataclass(frozen=True, slots=True)
class KvSlice:
    """The KV heads of `rank`, where `num_ranks` ranks divide the heads evenly and in order.

    If there are fewer heads than ranks, each head is kept by equally many ranks.
    """

    rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The layout of the keys and values of `block_size` tokens, for all layers that have them.

    Raises ValueError unless every layer from 0 on is in exactly one group.
    """

    groups: tuple[KvGroup, ...]
    block_size: int
    slice: KvSlice | None = None  # KV heads in this layout's `groups`; None: all heads of the model
    stage: Stage | None = None  # layers in this layout's `groups`; None: all layers of the model

    def __post_init__(self) -> None:
        layers = sorted(layer for group in self.groups for layer in group.layers)
        if not layers or layers != list(range(len(layers))):
            raise ValueError(f"layers {layers} of KV are not each layer of a model once")

    @property
    def num_layers(self) -> int:
        """The number of layers in all groups."""
        return sum(len(group.layers) for group in self.groups)

    @property
    def block_bytes(self) -> int:
        return self.offset(self.num_layers)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in all layers, with the token's scales, rounded down."""
        return self.block_bytes // self.block_size

    def slice_of(self, rank: int, num_ranks: int) -> KvLayout:
        """Return one rank's part of a block, which is the whole block for a single rank.

        Raises UnevenSlices if the ranks do not divide the heads. Raises ValueError if there is no
        such rank or this layout is already a slice.
        """
        if self.slice is not None or not 0 <= rank < num_ranks:
            raise ValueError(f"no rank {rank} of {num_ranks} has a slice of {self}")
        if num_ranks == 1:
            return self
        groups = tuple(_slice(group, num_ranks) for group in self.groups)
        return replace(self, groups=groups, slice=KvSlice(rank, num_ranks))

    def stage_of(self, stage: Stage) -> KvLayout:
        """Return one stage's layers, counted from 0.

        Raises ValueError if the stages are another model's, or this layout is a slice or a stage.
        """
        if self.slice is not None or self.stage is not None:
            raise ValueError(f"{stage} is no stage of {self}")
        if stage.is_whole:
            return self
        if stage.ends[-1] != self.num_layers:
            raise ValueError(f"{stage} is no stage of {self}")
        groups = []
        for group in self.groups:
            layers = tuple(one - stage.first for one in group.layers if one in stage.layers)
            if layers:
                groups.append(replace(group, layers=layers))
        return replace(self, groups=tuple(groups), stage=stage)

    def group_of(self, layer: int) -> KvGroup:
        """Return the group that contains `layer`."""
        return next(group for group in self.groups if layer in group.layers)

    def offset(self, layer: int) -> int:
        """Return the offset in bytes of `layer` in a block.

        If `layer` is the number of layers, returns the size of a block.
        """
        return sum(self._layer_bytes(self.group_of(before)) for before in range(layer))

    def _layer_bytes(self, group: KvGroup) -> int:
        numbers = group.planes * group.num_kv_heads * self.block_size * group.head_dim
        num_bytes = numbers * ITEM_BYTES[group.dtype] + group.scale_bytes
        return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _slice(group: KvGroup, num_ranks: int) -> KvGroup:
    heads = group.num_kv_heads
    # If there are fewer heads than ranks, several ranks keep each head.
    num_slices = heads if num_ranks % heads == 0 else num_ranks
    heads, odd_heads = divmod(heads, num_slices)
    scale_bytes, odd_bytes = divmod(group.scale_bytes, num_slices)
    if odd_heads or odd_bytes:
        raise UnevenSlices(
            f"{group.num_kv_heads} KV heads with {group.scale_bytes} bytes of scales"
            f" do not divide between {num_ranks} ranks"
        )
    return replace(group, num_kv_heads=heads, scale_bytes=scale_bytes)
