"""Llama, Mistral, Qwen2 and Qwen3, which differ in biases, head norms and defaults.

Of Mistral 3, which sees, the decoder is Mistral's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.models.attention import AttentionConfig
from engine.models.config import (
    ModelConfig,
    ModelSizes,
    Positive,
    read_json,
    read_sizes,
    served_dtype,
)
from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers import LayerConfig
from engine.models.mlp import MlpConfig
from engine.models.names import PLAIN_NAMES, CheckpointNames
from engine.models.norms import RmsNormConfig
from engine.models.rope import RopeConfig, parse_rope


class _Raw(ModelSizes, kw_only=True):
    """config.json as far as it matters here."""

    max_position_embeddings: Positive
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-6
    rope_theta: Annotated[float, msgspec.Meta(gt=0)] = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    model_type: str | None = None
    num_nextn_predict_layers: Annotated[int, msgspec.Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Llama:
    """What an architecture's name alone says; implements `Architecture`."""

    family: str
    default_head_dim: int | None = None  # None: hidden_size / heads
    qkv_bias: bool = False  # always, whatever attention_bias says
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    default_sliding_window: int | None = None
    windows_by_flag: bool = False  # sliding_window counts only under use_sliding_window
    within: str | None = None  # the field of config.json that has the decoder's; None: the file
    model_type: str | None = None  # of the decoder within it
    names: CheckpointNames = PLAIN_NAMES
    examples: tuple[str, ...] = ()

    def read(self, path: Path) -> ModelConfig:
        """As `Architecture.read`."""
        raw = read_json(path, _Raw, self.within)
        self._refuse_unsupported(raw)
        _check_heads(raw, self.default_head_dim)
        scaling, positions = raw.rope_parameters or raw.rope_scaling, raw.max_position_embeddings
        layer = self._layer(
            raw,
            parse_rope(scaling, raw.rope_theta, positions),
            raw.rms_norm_eps,
            attention_bias=self.reads_attention_bias and raw.attention_bias,
            mlp_bias=self.reads_mlp_bias and raw.mlp_bias,
        )
        return ModelConfig(
            family=self.family,
            vocab_size=raw.vocab_size,
            hidden_size=raw.hidden_size,
            layers=(layer,) * raw.num_hidden_layers,
            final_norm=layer.norm,
            max_positions=positions,
            tied=raw.tie_word_embeddings,
            dtype=served_dtype(raw),
            names=self._names(raw),
        )

    def layers(self, path: Path) -> tuple[LayerConfig, ...]:
        """As `Architecture.layers`."""
        sizes = read_sizes(path)
        return (self._layer(sizes),) * sizes.num_hidden_layers

    def _layer(
        self,
        sizes: ModelSizes,
        rope: RopeConfig | None = None,
        eps: float = 1e-6,
        *,
        attention_bias: bool = False,
        mlp_bias: bool = False,
    ) -> LayerConfig:
        attention = AttentionConfig(
            num_heads=sizes.num_attention_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.size_of_head(self.default_head_dim),
            rope=rope,
            qkv_bias=self.qkv_bias or attention_bias,
            output_bias=attention_bias,
            qk_norm=self.qk_norm,
        )
        mlp = MlpConfig(sizes.intermediate_size, mlp_bias)
        return LayerConfig(sizes.hidden_size, attention, mlp, RmsNormConfig(eps))

    def _names(self, raw: _Raw) -> CheckpointNames:
        layers, drafting = raw.num_hidden_layers, raw.num_nextn_predict_layers or 0
        return replace(self.names, drafting_layers=range(layers, layers + drafting))

    def _refuse_unsupported(self, raw: _Raw) -> None:
        if self.model_type is not None and raw.model_type != self.model_type:
            raise UnsupportedModel(
                f"{self.within}.model_type {raw.model_type!r}: served is {self.model_type!r}"
            )
        if raw.hidden_act != "silu":
            raise UnsupportedModel(f"hidden_act {raw.hidden_act!r}: only 'silu' is served")
        window = self._sliding_window(raw)
        if window is not None:
            raise UnsupportedModel(
                f"sliding_window {window}: attention over a window is not served; a checkpoint "
                "that attends to its whole context has sliding_window null or use_sliding_window "
                "false"
            )

    def _sliding_window(self, raw: _Raw) -> int | None:
        """The window in use; None where every layer attends to the whole context."""
        given = raw.sliding_window
        window = self.default_sliding_window if given is msgspec.UNSET else given
        if self.windows_by_flag:
            in_use = raw.use_sliding_window or "sliding_attention" in (raw.layer_types or ())
            return (window or raw.max_position_embeddings) if in_use else None
        if self.default_sliding_window is None or window is None:
            return None
        return window if window < raw.max_position_embeddings else None


LLAMA = Llama(
    "llama",
    reads_attention_bias=True,
    reads_mlp_bias=True,
    examples=("Llama 3.3", "DeepSeek R1 Distill Llama", "SmolLM2"),
)
MISTRAL = Llama("mistral", default_sliding_window=4096, examples=("Mistral 7B", "Mistral Nemo"))
# The decoder of a model that sees; what it sees with is left in the files.
MISTRAL3 = replace(
    MISTRAL,
    within="text_config",
    model_type="mistral",
    names=CheckpointNames((("language_model.", ""), ("model.language_model.", "model."))),
    examples=("Mistral Small 3.1",),
)
QWEN2 = Llama("qwen2", qkv_bias=True, windows_by_flag=True, examples=("Qwen2.5", "Qwen2.5 Coder"))
QWEN3 = Llama(
    "qwen3",
    default_head_dim=128,
    reads_attention_bias=True,
    qk_norm=True,
    windows_by_flag=True,
    examples=("Qwen3 0.6B to 32B",),
)


def _check_heads(raw: _Raw, default_head_dim: int | None) -> None:
    heads = raw.num_attention_heads
    if raw.head_dim is None and default_head_dim is None and raw.hidden_size % heads:
        raise BadConfig(
            f"hidden_size {raw.hidden_size} is no multiple of "
            f"num_attention_heads {heads}, and head_dim is not given"
        )
    head_dim = raw.size_of_head(default_head_dim)
    if head_dim % 2:
        raise BadConfig(f"head_dim {head_dim} is odd")
    if heads % raw.num_kv_heads:
        raise BadConfig(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {raw.num_kv_heads}"
        )
