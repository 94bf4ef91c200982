"""The costs of a decoder, from its config.json, without torch: weights, KV bytes, FLOPs.

`engine.models.checks` decides whether the model can be served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cli.errors import ModelNotFound
from cli.plan.machine import ModelShape, WindowShape
from engine.models.config import kv_layout, kv_stage, state_layout
from engine.models.errors import ModelError, UnsupportedModel
from engine.models.freed_windows import MemoryLayouts, freed, pays
from engine.models.layers.draft_head import DraftHeadConfig
from engine.models.layers.layer import LayerConfig, attentions
from engine.models.layers.mixer import KvConfig
from engine.models.modules import WeightFormat
from engine.models.served.reading import (
    check_format,
    planned_format,
    planned_head,
    planned_layers,
    planned_sizes,
)
from engine.models.shards import check_layer_shards, shard_head, shard_layers, vocabulary_rows
from engine.models.stages import head_bytes, layer_bytes
from engine.models.weight_formats.plain import PLAIN
from storage.layouts.kv_layout import FP8, ITEM_BYTES, KvLayout
from storage.layouts.stage import Stage
from storage.layouts.window_layout import SlotLayout

BLOCK_SIZE = 16  # arbitrary: the block size does not change a token's bytes
DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class DecoderCounts:
    """The counts of a decoder.

    Biases count in bytes only. Norms, about 0.01 % of all parameters, do not count. A draft head
    counts in bytes of weights and KV, but not in times.
    """

    layers: tuple[LayerConfig, ...]
    hidden_size: int
    # number of parameters of the input embeddings; the output table has as many
    table_parameters: int
    tables: int  # 1 if input and output share a table
    dtype: str
    kv: KvLayout
    # weight format of the layers' matrices; tables stay unquantised
    weight_format: WeightFormat = PLAIN
    num_ranks: int = 1
    layer_input_weights: int = 0  # number of weights of `layer_inputs`, which stay unquantised
    has_input: bool = True
    has_output: bool = True
    # the draft head that the config describes, even if the weight files lack it
    head: DraftHeadConfig | None = None

    @property
    def layer_parameters(self) -> int:
        """The number of parameters of all layers."""
        return sum(layer.num_held_weights for layer in self.layers)

    @property
    def active_layer_parameters(self) -> int:
        """The number of parameters used per token, which is smaller in mixtures of experts."""
        return sum(layer.num_weights for layer in self.layers)

    @property
    def parameters(self) -> int:
        """The number of all parameters."""
        tables = self.tables * self.table_parameters
        return self.layer_parameters + self.layer_input_weights + tables

    @property
    def active_parameters(self) -> int:
        """The number of parameters that a token uses, which excludes experts not chosen for it."""
        return self.parameters - self.layer_parameters + self.active_layer_parameters

    @property
    def rule_of_thumb(self) -> int:
        """12 L d^2: the parameters of L ordinary layers of width d, without grouped heads."""
        return 12 * len(self.layers) * self.hidden_size**2

    @property
    def bytes_by_layer(self) -> tuple[int, ...]:
        """The bytes of each layer's matrices."""
        return layer_bytes(self.layers, self.weight_format, self.dtype)

    @property
    def layer_bytes(self) -> int:
        """The bytes of all layers' matrices."""
        return sum(self.bytes_by_layer)

    @property
    def head_bytes(self) -> int:
        """The bytes of the draft head's matrices. The head's projection stays unquantised."""
        if self.head is None:
            return 0
        return head_bytes(self.head, len(self.layers), self.weight_format, self.dtype)

    @property
    def head_kv_bytes(self) -> int:
        """The bytes of a token's keys and values in the draft head."""
        return self.kv_bytes_per_token - self.without_head().kv_bytes_per_token

    @property
    def is_served(self) -> bool:
        """True if all matrices can have this weight format."""
        try:
            check_format(self.weight_format, self.layers)
            _ = self.layer_bytes + self.head_bytes
        except UnsupportedModel:
            return False
        return True

    @property
    def table_bytes(self) -> int:
        """The bytes of one table."""
        return self.table_parameters * ITEM_BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        own = self.layer_bytes + self.head_bytes
        own += self.layer_input_weights * ITEM_BYTES[self.dtype]
        if self.tables == 1:
            return own + (self.has_input or self.has_output) * self.table_bytes
        vocab_size = self.table_parameters // self.hidden_size
        head = self.table_bytes * vocabulary_rows(vocab_size, self.num_ranks) // vocab_size
        return own + self.has_input * self.table_bytes + self.has_output * head

    @property
    def kv_bytes_per_token(self) -> int:
        """The bytes of a token's keys and values in all layers."""
        return self.kv.token_bytes

    @property
    def kept(self) -> MemoryLayouts:
        """The layouts of blocks, and of recurrent states or windows, that a server would choose.

        Blocks outside attention windows are freed if this saves memory, but never in pipeline
        stages or with a draft head.
        """
        kv_dtype = self.kv.groups[0].dtype
        is_all = self.has_input and self.has_output and self.head is None
        found = freed(self.layers, kv_dtype, BLOCK_SIZE) if is_all else None
        if found is not None and pays(found, self.kv):
            return found
        return MemoryLayouts(self.kv, state_layout(self.layers, self.dtype))

    @property
    def block_bytes_per_token(self) -> int:
        """The bytes of a token in KV blocks, which leave out layers with freed windows."""
        return self.kept.kv.token_bytes

    @property
    def states(self) -> SlotLayout | None:
        """The layout of a recurrent state or of a freed window, if there is any."""
        return self.kept.states

    @property
    def shape(self) -> ModelShape:
        """The costs of prefill and of decode steps.

        Every prompt token passes the layers, but only the last token passes the output table. A
        step reads all weights except the input embeddings. In a mixture of experts, a step does not
        read experts that no request uses.
        """
        table = self.has_output * self.table_bytes
        step = self.layer_bytes + table
        active = self.active_layer_parameters / self.layer_parameters
        return ModelShape(
            parameters=float(self.active_layer_parameters),
            kv_bytes_per_token=self.kv_bytes_per_token,
            attention_flops=sum(one.attention_flops for one in attentions(self.layers)),
            step_bytes=float(step),
            row_bytes=self.layer_bytes * active + table,
            windows=tuple(self._windows()),
            freed_bytes_per_token=self.kv_bytes_per_token - self.block_bytes_per_token,
        )

    def _windows(self) -> Iterator[WindowShape]:
        windows = [one.window for one in attentions(self.layers)]
        for tokens in sorted({window for window in windows if window is not None}):
            own = [
                layer
                for layer in self.layers
                if isinstance(layer.mixer, KvConfig) and layer.mixer.window == tokens
            ]
            kv_bytes = kv_layout(own, self.kv.groups[0].dtype, BLOCK_SIZE).token_bytes
            flops = sum(one.attention_flops for one in attentions(own))
            yield WindowShape(tokens, kv_bytes, flops)

    def with_weights_in(self, weight_format: WeightFormat) -> DecoderCounts:
        """Return this model in another weight format."""
        return replace(self, weight_format=weight_format)

    def of_rank(self, num_ranks: int) -> DecoderCounts:
        """Return one rank's part. Raises UnsupportedModel if ranks cannot divide the model."""
        check_layer_shards(self.layers, self.weight_format, num_ranks)
        layers, head = shard_layers(self.layers, num_ranks), self.head
        part = replace(
            self,
            layers=layers,
            num_ranks=num_ranks,
            head=None if head is None else shard_head(head, num_ranks),
        )
        return part.with_kv_in(self.kv.groups[0].dtype)

    def divides(self, num_ranks: int) -> bool:
        """Return whether `num_ranks` ranks can divide the model in this format."""
        try:
            self.of_rank(num_ranks)
        except UnsupportedModel:
            return False
        return True

    def of_stage(self, stage: Stage) -> DecoderCounts:
        """Return a pipeline stage's weights, KV and `shape`. The last stage has the draft head."""
        if stage.is_whole:
            return self
        of_head = () if self.head is None else (self.head.layer,)
        return replace(
            self,
            head=self.head if stage.is_last else None,
            layers=tuple(self.layers[index] for index in stage.layers),
            kv=self.kv.stage_of(kv_stage((*self.layers, *of_head), stage)),
            has_input=self.has_input and (stage.is_first or (stage.is_last and bool(of_head))),
            has_output=self.has_output and stage.is_last,
        )

    def with_kv_in(self, dtype: str) -> DecoderCounts:
        """Return this model with another KV type."""
        return replace(self, kv=_kv_layout(self.layers, self.head, dtype))

    def without_head(self) -> DecoderCounts:
        """Return this model without a draft head."""
        if self.head is None:
            return self
        return replace(self, head=None).with_kv_in(self.kv.groups[0].dtype)


def read_decoder(path: Path, dtype: str = "auto") -> DecoderCounts:
    """Read a config.json. Raises ModelNotFound if it is missing or incomplete.

    `dtype` is the type of weights and KV. "auto" is the file's type, and with "fp8" only KV is in
    fp8.
    """
    if dtype == "fp8":
        return read_decoder(path).with_kv_in(FP8)
    try:
        sizes, layers = planned_sizes(path), planned_layers(path)
        weight_format, head = planned_format(path), planned_head(path)
    except ModelError as error:
        raise ModelNotFound(str(error)) from error
    name = (sizes.dtype_name or DEFAULT_DTYPE) if dtype == "auto" else dtype
    if name not in ITEM_BYTES:
        raise ModelNotFound(f"{path}: dtype {name!r} is none of {', '.join(ITEM_BYTES)}")
    decoder = DecoderCounts(
        layers=layers,
        hidden_size=sizes.hidden_size,
        table_parameters=sizes.vocab_size * sizes.hidden_size,
        tables=1 if sizes.tie_word_embeddings else 2,
        dtype=name,
        kv=_kv_layout(layers, head, name),
        weight_format=weight_format,
        layer_input_weights=sizes.layer_input_weights,
        head=head,
    )
    return decoder if decoder.is_served else decoder.with_weights_in(PLAIN)


def _kv_layout(
    layers: tuple[LayerConfig, ...], head: DraftHeadConfig | None, dtype: str
) -> KvLayout:
    kept = layers if head is None else (*layers, head.layer)
    return kv_layout(kept, dtype, BLOCK_SIZE)
