"""What a decoder costs by its config.json: weights, KV bytes, FLOPs. No weights, no torch.

Whether the model can be served is decided by `engine.models.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.errors import ModelNotFound
from cli.simulation.machine import ModelShape
from engine.models.architecture import planned_layers
from engine.models.config import ModelSizes, kv_layout, read_json
from engine.models.errors import BadConfig
from engine.models.layers import LayerConfig
from storage.kv_layout import ITEM_BYTES, KvLayout

BLOCK_SIZE = 16  # a token has the same bytes in blocks of any size
DEFAULT_DTYPE = "float32"  # of a checkpoint that does not say


@dataclass(frozen=True, slots=True)
class DecoderCounts:
    """A decoder's counts."""

    layers: tuple[LayerConfig, ...]
    hidden_size: int
    table_parameters: int  # of the input's embeddings; the output's are as many
    tables: int  # 1 where input and output have one together
    bytes_per_parameter: int
    kv: KvLayout

    @property
    def layer_parameters(self) -> int:
        """Of all layers. Norms and biases, a few thousandths, are left out."""
        return sum(layer.num_weights for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All, with the same left out."""
        return self.layer_parameters + self.tables * self.table_parameters

    @property
    def rule_of_thumb(self) -> int:
        """12 L d^2: parameters of L plain layers of width d, without grouped heads."""
        return 12 * len(self.layers) * self.hidden_size**2

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return self.parameters * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.kv.token_bytes

    @property
    def shape(self) -> ModelShape:
        """What prefill costs: every token goes through the layers, the last alone further.

        A step reads all but the input's embeddings.
        """
        step = self.layer_parameters + self.table_parameters
        return ModelShape(
            parameters=float(self.layer_parameters),
            kv_bytes_per_token=self.kv_bytes_per_token,
            attention_flops=4.0 * sum(layer.attention.query_size for layer in self.layers),
            step_bytes=float(step * self.bytes_per_parameter),
        )


def read_decoder(path: Path, dtype: str = "auto") -> DecoderCounts:
    """Read a config.json; ModelNotFound where it is not there or says too little."""
    try:
        sizes, layers = read_json(path, ModelSizes), planned_layers(path)
    except BadConfig as error:
        raise ModelNotFound(str(error)) from error
    name = (sizes.dtype_name or DEFAULT_DTYPE) if dtype == "auto" else dtype
    if name not in ITEM_BYTES:
        raise ModelNotFound(f"{path}: dtype {name!r} is none of {', '.join(ITEM_BYTES)}")
    return DecoderCounts(
        layers=layers,
        hidden_size=sizes.hidden_size,
        table_parameters=sizes.vocab_size * sizes.hidden_size,
        tables=1 if sizes.tie_word_embeddings else 2,
        bytes_per_parameter=ITEM_BYTES[name],
        kv=kv_layout(layers, name, BLOCK_SIZE),
    )
