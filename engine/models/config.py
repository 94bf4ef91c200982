"""The config of a model, which is read from a Hugging Face directory before the tensors.

This module has the fields that determine a decoder's cost, with Hugging Face's defaults, and the
layout of KV and recurrent states. Each architecture reads further fields. Commands that only make
plans also read sizes, so this module does not import torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.layers.attention import AttentionConfig
from engine.models.layers.draft_head import DraftHeadConfig
from engine.models.layers.layer import LayerConfig, attentions, keeps_kv
from engine.models.layers.layer_inputs import LayerInputsConfig
from engine.models.layers.mixer import KvConfig, RecurrentConfig, TokenKeys
from engine.models.layers.norms import RmsNormConfig
from engine.models.lfs_pointers import WHAT, is_pointer
from engine.models.model_files import decode, read_file, read_object
from engine.models.modules import WeightFormat
from engine.models.names import PLAIN_NAMES, CheckpointNames
from engine.models.weight_formats.plain import PLAIN
from kernels.limits import KV_SCALE_BYTES
from storage.layouts.kv_layout import FP8, KvGroup, KvLayout
from storage.layouts.stage import Stage
from storage.layouts.state_layout import StateLayout

Positive = Annotated[int, msgspec.Meta(gt=0)]
# Limits on untrusted numbers, because Python objects are made for every layer and expert. Known
# models have at most 126 layers and 512 experts.
MAX_LAYERS = 1024
LayerCount = Annotated[int, msgspec.Meta(gt=0, le=MAX_LAYERS)]
ExpertCount = Annotated[int, msgspec.Meta(gt=0, le=4096)]
T = TypeVar("T", bound=msgspec.Struct)
TEXT = "text_config"
OF_THE_WHOLE = ("dtype", "torch_dtype")


class ModelSizes(msgspec.Struct, kw_only=True):
    """The sizes of a model, as numbers of elements. config.json may omit fields with a default."""

    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: LayerCount
    num_attention_heads: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    tie_word_embeddings: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None  # older name of `dtype`

    @property
    def num_kv_heads(self) -> int:
        """The number of KV heads, by default the number of query heads."""
        return self.num_key_value_heads or self.num_attention_heads

    def size_of_head(self, default: int | None = None) -> int:
        """Return the size of one head.

        `default` is the architecture's default, or None for `hidden_size` / heads, rounded down.
        """
        return self.head_dim or default or self.hidden_size // self.num_attention_heads

    @property
    def layer_input_weights(self) -> int:
        """The number of weights for the additional inputs of layers, without the embeddings."""
        return 0

    @property
    def dtype_name(self) -> str | None:
        """The dtype of the model checkpoint, or None if the file names no dtype."""
        return self.dtype or self.torch_dtype


def read_json(path: Path, kind: type[T], within: str | None = None) -> T:
    """Decode a JSON file, or the object in its field `within`, as a `kind`.

    If the object lacks a field of `OF_THE_WHOLE`, it is taken from the top level. Raises BadConfig
    if the file or the field is absent, unreadable or malformed.
    """
    try:
        if within is None:
            return decode(read_file(path), kind)
        whole = read_object(path)
        common = {name: whole[name] for name in OF_THE_WHOLE if name in whole}
        inner = msgspec.convert(whole.get(within), dict[str, Any])
        return msgspec.convert({**common, **inner}, kind)
    except OSError as error:
        raise BadConfig(f"{path} is not there or cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if is_pointer(path):
            raise BadConfig(f"{path} is {WHAT}") from error
        place = "" if within is None else f" {within}:"
        raise BadConfig(f"{path}:{place} {error}") from error


class _MayHaveText(msgspec.Struct):
    text_config: dict[str, Any] | None = None


def text_field(path: Path) -> str | None:
    """Return the name of the field with the text model's config, or None for a text-only model."""
    return TEXT if read_json(path, _MayHaveText).text_config else None


def read_sizes(path: Path) -> ModelSizes:
    """Read the sizes of a model, or of its text model. Raises BadConfig."""
    return read_json(path, ModelSizes, text_field(path))


def check_heads(raw: ModelSizes, default_head_dim: int | None = None) -> None:
    """Raise BadConfig if heads contradict other sizes. `default_head_dim`: see `size_of_head`."""
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


def check_silu(hidden_act: str) -> None:
    """Raise UnsupportedModel for an activation other than SiLU."""
    if hidden_act != "silu":
        raise UnsupportedModel(f"hidden_act {hidden_act!r}: only 'silu' is served")


def check_value(field: str, given: object, served: object) -> None:
    """Raise UnsupportedModel if a field's value, `given`, is not the only `served` value."""
    if given != served:
        raise UnsupportedModel(f"{field} {given!r}: served is {served!r}")


SERVED_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The config of a decoder. Sizes are in elements, `max_positions` is in tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    final_norm: RmsNormConfig
    max_positions: int
    tied: bool  # True if the output projection is the embedding
    dtype: str | None  # dtype of the model checkpoint, in SERVED_DTYPES; None: unknown
    eos_token_ids: tuple[int, ...] = ()
    weight_format: WeightFormat = PLAIN
    names: CheckpointNames = PLAIN_NAMES
    embedding_scale: float | None = None  # factor on embeddings; None: 1
    rounds_embedding_scale: bool = False  # True: the factor is rounded to the model's dtype (Gemma)
    logits_divisor: float | None = None  # divisor of logits; None: 1
    logits_softcap: float | None = None  # logits become softcap * tanh(logit / softcap)
    layer_inputs: LayerInputsConfig | None = None  # None: layers have no additional inputs
    possible_head: DraftHeadConfig | None = None
    draft_head: DraftHeadConfig | None = None

    def for_positions(self, num_positions: int) -> ModelConfig:
        """Return the config with the ropes that sequences of `num_positions` tokens need."""
        layers = tuple(_for_positions(layer, num_positions) for layer in self.layers)
        head = self.draft_head
        if head is not None:
            head = replace(head, layer=_for_positions(head.layer, num_positions))
        return replace(self, layers=layers, draft_head=head)

    @property
    def layers_with_memory(self) -> tuple[LayerConfig, ...]:
        """The layers that keep KV or recurrent states. The draft head's layer is the last."""
        return self.layers if self.draft_head is None else (*self.layers, self.draft_head.layer)

    @property
    def attentions(self) -> frozenset[KvConfig]:
        """The attention configs of all layers that have attention."""
        return frozenset(attentions(self.layers_with_memory))


def _for_positions(layer: LayerConfig, num_positions: int) -> LayerConfig:
    mixer = layer.mixer
    if not isinstance(mixer, KvConfig) or mixer.rope is None:
        return layer
    return replace(layer, mixer=mixer.with_rope(mixer.rope.for_positions(num_positions)))


def served_dtype(sizes: ModelSizes) -> str | None:
    """Return the dtype of a model checkpoint, or None. Raises UnsupportedModel."""
    name = sizes.dtype_name
    if name is not None and name not in SERVED_DTYPES:
        raise UnsupportedModel(f"dtype {name!r}: served are {', '.join(SERVED_DTYPES)}")
    return name


def reads_modules(model: ModelConfig) -> bool:
    """Return whether a prompt may consist of prompt modules, whose positions may have gaps.

    This needs attention to all keys, in any order, in every layer. Layers with latents or recurrent
    states are excluded, because they are untested.
    """
    mixers = [layer.mixer for layer in model.layers]
    return all(
        isinstance(one, AttentionConfig) and one.window is None and one.kv_of is None
        for one in mixers
    )


def refuse_shared(model: ModelConfig, setting: str) -> None:
    """Raise UnsupportedModel if layers share KV or have additional inputs.

    `setting` is named in the error.
    """
    if model.layer_inputs is not None or any(one.kv_of is not None for one in model.attentions):
        raise UnsupportedModel(
            f"{setting}: a model whose layers share KV or have inputs of their own is served "
            "without it"
        )


def kv_layout(layers: Sequence[LayerConfig], dtype: str, block_size: int) -> KvLayout:
    """Return the layout of blocks of `block_size` tokens, for the layers that keep KV.

    `dtype` is the dtype of keys and values.
    """
    alike: dict[KvGroup, list[int]] = defaultdict(list)
    for index, one in enumerate(attentions(filter(keeps_kv, layers))):
        kept, scales = one.kept, _scale_bytes(one.kept, block_size) if dtype == FP8 else 0
        group = KvGroup((), kept.heads, kept.size, dtype, one.window, scales, kept.has_values)
        alike[group].append(index)
    groups = (replace(group, layers=tuple(indices)) for group, indices in alike.items())
    return KvLayout(tuple(groups), block_size)


def kv_stage(layers: Sequence[LayerConfig], stage: Stage) -> Stage:
    """Return the stage with its ends counted in layers that keep KV, for `KvLayout.stage_of`.

    If `layers` ends with a draft head's layer, this layer belongs to the last stage.
    """
    kept = [keeps_kv(layer) for layer in layers]
    ends = tuple(sum(kept[:end]) for end in stage.ends[:-1])
    return Stage(stage.index, (*ends, sum(kept)))


def state_layout(layers: Sequence[LayerConfig], dtype: str) -> StateLayout | None:
    """Return the layout of recurrent states in the model's `dtype`, or None without such states."""
    shapes = tuple(one.mixer.state for one in layers if isinstance(one.mixer, RecurrentConfig))
    return StateLayout(shapes, dtype) if shapes else None


def _scale_bytes(kept: TokenKeys, block_size: int) -> int:
    """Return the bytes of the scales of a layer in one block of fp8 KV."""
    return (1 + kept.has_values) * kept.heads * block_size * KV_SCALE_BYTES
