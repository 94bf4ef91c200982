"""One decoder's shape, read from a Hugging Face directory.

Knows: which fields of config.json and generation_config.json matter for Llama, Mistral, Qwen2
and Qwen3, their defaults, and what to refuse. Does not know: weights, devices, tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from engine.model.errors import BadConfig, UnsupportedModel
from engine.model.rope import RopeConfig, parse_rope

Positive = Annotated[int, msgspec.Meta(gt=0)]
T = TypeVar("T", bound=msgspec.Struct)
TokenIdOrIds = int | list[int] | None

SERVED_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture's name alone says."""

    name: str
    qkv_bias: bool = False  # always, whatever attention_bias says
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None  # None: hidden_size / heads
    default_sliding_window: int | None = None
    windows_by_flag: bool = False  # sliding_window counts only under use_sliding_window


FAMILIES = {
    "LlamaForCausalLM": Family("llama", reads_attention_bias=True, reads_mlp_bias=True),
    "MistralForCausalLM": Family("mistral", default_sliding_window=4096),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, windows_by_flag=True),
    "Qwen3ForCausalLM": Family(
        "qwen3",
        reads_attention_bias=True,
        qk_norm=True,
        default_head_dim=128,
        windows_by_flag=True,
    ),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape. Counts are of tensors' elements; `max_positions` of tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    rope: RopeConfig
    tied: bool  # the output projection is the embedding
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    dtype: str | None  # of the checkpoint, one of SERVED_DTYPES; None: not said
    eos_token_ids: tuple[int, ...]

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.num_kv_heads * self.head_dim


class _Raw(msgspec.Struct, kw_only=True):
    """config.json as far as it matters here."""

    architectures: list[str]
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    max_position_embeddings: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-6
    rope_theta: Annotated[float, msgspec.Meta(gt=0)] = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: TokenIdOrIds = None


class _RawGeneration(msgspec.Struct):
    eos_token_id: TokenIdOrIds = None


def read_model_config(model_dir: Path) -> ModelConfig:
    """Read and validate `model_dir`/config.json and, where present, generation_config.json.

    Raises BadConfig for what is absent or malformed, UnsupportedModel for what is well formed
    but not served.
    """
    raw = _decode(model_dir / "config.json", _Raw)
    generation_path = model_dir / "generation_config.json"
    generation = (
        _decode(generation_path, _RawGeneration) if generation_path.exists() else _RawGeneration()
    )
    family = _family_of(raw)
    _refuse_unsupported(raw, family)
    eos = generation.eos_token_id if generation.eos_token_id is not None else raw.eos_token_id
    return _model_config(raw, family, _token_ids(eos))


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise BadConfig(f"{path} is not there") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}") from error


def _family_of(raw: _Raw) -> Family:
    named = [FAMILIES[name] for name in raw.architectures if name in FAMILIES]
    if len(raw.architectures) != 1 or not named:
        raise UnsupportedModel(
            f"architectures {raw.architectures}: served are {', '.join(sorted(FAMILIES))}"
        )
    return named[0]


def _refuse_unsupported(raw: _Raw, family: Family) -> None:
    if raw.quantization_config is not None:
        raise UnsupportedModel("quantization_config: quantised weights are not served")
    if raw.hidden_act != "silu":
        raise UnsupportedModel(f"hidden_act {raw.hidden_act!r}: only 'silu' is served")
    window = _sliding_window(raw, family)
    if window is not None:
        raise UnsupportedModel(
            f"sliding_window {window}: attention over a window is not served; a checkpoint that "
            "attends to its whole context has sliding_window null or use_sliding_window false"
        )


def _sliding_window(raw: _Raw, family: Family) -> int | None:
    """The window in use; None where every layer attends to the whole context."""
    given = raw.sliding_window
    window = family.default_sliding_window if given is msgspec.UNSET else given
    if family.windows_by_flag:
        in_use = raw.use_sliding_window or "sliding_attention" in (raw.layer_types or ())
        return (window or raw.max_position_embeddings) if in_use else None
    if family.default_sliding_window is None or window is None:
        return None
    return window if window < raw.max_position_embeddings else None


def _token_ids(eos: TokenIdOrIds) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _head_dim(raw: _Raw, family: Family) -> int:
    given = raw.head_dim or family.default_head_dim
    if given is None and raw.hidden_size % raw.num_attention_heads:
        raise BadConfig(
            f"hidden_size {raw.hidden_size} is no multiple of "
            f"num_attention_heads {raw.num_attention_heads}, and head_dim is not given"
        )
    head_dim = given or raw.hidden_size // raw.num_attention_heads
    if head_dim % 2:
        raise BadConfig(f"head_dim {head_dim} is odd")
    return head_dim


def _dtype(raw: _Raw) -> str | None:
    name = raw.dtype or raw.torch_dtype
    if name is not None and name not in SERVED_DTYPES:
        raise UnsupportedModel(f"dtype {name!r}: served are {', '.join(SERVED_DTYPES)}")
    return name


def _model_config(raw: _Raw, family: Family, eos_token_ids: tuple[int, ...]) -> ModelConfig:
    num_kv_heads = raw.num_key_value_heads or raw.num_attention_heads
    if raw.num_attention_heads % num_kv_heads:
        raise BadConfig(
            f"num_attention_heads {raw.num_attention_heads} is no multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    attention_bias = family.reads_attention_bias and raw.attention_bias
    return ModelConfig(
        family=family.name,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_layers=raw.num_hidden_layers,
        num_heads=raw.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(raw, family),
        rms_norm_eps=raw.rms_norm_eps,
        max_positions=raw.max_position_embeddings,
        rope=parse_rope(
            raw.rope_parameters or raw.rope_scaling, raw.rope_theta, raw.max_position_embeddings
        ),
        tied=raw.tie_word_embeddings,
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family.reads_mlp_bias and raw.mlp_bias,
        qk_norm=family.qk_norm,
        dtype=_dtype(raw),
        eos_token_ids=eos_token_ids,
    )
