"""What a decoder's config.json says about its cost: weights, KV bytes, FLOPs. No weights, no torch.

Knows: the few fields that decide this, with Hugging Face's defaults. Does not know: whether the
model can be served; `engine.model.config` decides that, and needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from cli.errors import ModelNotFound
from cli.simulation.machine import ModelShape

Positive = Annotated[int, msgspec.Meta(gt=0)]
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DEFAULT_DTYPE = "float32"  # of a checkpoint that does not say
QWEN3_HEAD_DIM = 128


class _Raw(msgspec.Struct):
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    tie_word_embeddings: bool = False
    architectures: list[str] = []
    dtype: str | None = None
    torch_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's counts. `bytes_per_number` is of weights and KV."""

    num_layers: int
    query_size: int  # width of all query heads together
    kv_size: int  # of all key heads; the value heads have the same
    layer_parameters: int
    embedding_parameters: int  # of input and output
    bytes_per_number: int

    @property
    def weight_bytes(self) -> int:
        """All weights. Norms and biases, a few thousandths, are left out."""
        parameters = self.num_layers * self.layer_parameters + self.embedding_parameters
        return parameters * self.bytes_per_number

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.kv_size * self.bytes_per_number

    @property
    def shape(self) -> ModelShape:
        """What prefill costs: every token goes through the layers, the last alone further."""
        return ModelShape(
            parameters=float(self.num_layers * self.layer_parameters),
            kv_bytes_per_token=self.kv_bytes_per_token,
            attention_flops=4.0 * self.num_layers * self.query_size,
        )


def read_decoder(path: Path, dtype: str = "auto") -> Decoder:
    """Read a config.json; ModelNotFound where it is not there or says too little."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=_Raw)
    except OSError as error:
        raise ModelNotFound(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelNotFound(f"{path}: {error}") from error
    name = (raw.dtype or raw.torch_dtype or DEFAULT_DTYPE) if dtype == "auto" else dtype
    if name not in BYTES:
        raise ModelNotFound(f"{path}: dtype {name!r} is none of {', '.join(BYTES)}")
    return _decoder(raw, BYTES[name])


def _decoder(raw: _Raw, bytes_per_number: int) -> Decoder:
    query = raw.num_attention_heads * _head_dim(raw)
    kv = (raw.num_key_value_heads or raw.num_attention_heads) * _head_dim(raw)
    attention = raw.hidden_size * (2 * query + 2 * kv)
    mlp = 3 * raw.hidden_size * raw.intermediate_size
    embeddings = (1 if raw.tie_word_embeddings else 2) * raw.vocab_size * raw.hidden_size
    return Decoder(
        num_layers=raw.num_hidden_layers,
        query_size=query,
        kv_size=kv,
        layer_parameters=attention + mlp,
        embedding_parameters=embeddings,
        bytes_per_number=bytes_per_number,
    )


def _head_dim(raw: _Raw) -> int:
    default = QWEN3_HEAD_DIM if "Qwen3ForCausalLM" in raw.architectures else None
    return raw.head_dim or default or raw.hidden_size // raw.num_attention_heads
