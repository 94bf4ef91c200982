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
    embedding_parameters: int  # of input and output
    bytes_per_parameter: int
    kv: KvLayout

    @property
    def layer_parameters(self) -> int:
        """Of all layers. Norms and biases, a few thousandths, are left out."""
        return sum(layer.num_weights for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return (self.layer_parameters + self.embedding_parameters) * self.bytes_per_parameter

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.kv.token_bytes

    @property
    def shape(self) -> ModelShape:
        """What prefill costs: every token goes through the layers, the last alone further."""
        return ModelShape(
            parameters=float(self.layer_parameters),
            kv_bytes_per_token=self.kv_bytes_per_token,
            attention_flops=4.0 * sum(layer.attention.query_size for layer in self.layers),
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
    tables = 1 if sizes.tie_word_embeddings else 2
    embeddings = tables * sizes.vocab_size * sizes.hidden_size
    return DecoderCounts(layers, embeddings, ITEM_BYTES[name], kv_layout(layers, name, BLOCK_SIZE))
