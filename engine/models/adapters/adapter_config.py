"""The adapter_config.json of a PEFT adapter: its rank and scale, or why it is not served.

A field may be set only if this module reads it, or if it does not change the computation. Unknown
fields of later PEFT versions are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from engine.models.adapters.errors import AdapterRefused
from engine.models.model_files import decode

# The fields about training or PEFT itself, and fields that list tensors of the file.
_WITHOUT_EFFECT = frozenset(
    {
        "peft_type",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "task_type",
        "inference_mode",
        "peft_version",
        "target_modules",
        "target_parameters",
        "exclude_modules",
        "lora_dropout",
        "init_lora_weights",
        "layers_to_transform",
        "layers_pattern",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "qalora_group_size",
        "runtime_config",
        "ensure_weight_tying",
    }
)
_PATTERNS = "rank_pattern", "alpha_pattern"
_READ = frozenset({"r", "lora_alpha", "use_rslora", "bias", "alora_invocation_tokens", *_PATTERNS})
# The only served pattern, which PEFT writes for adapters of joined gate and up.
JOINED = r".*\.gate_up_proj"
MOST_RANK = 1024  # far above any known adapter; the engine's own limit is lower
MOST_INVOCATION = 256

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class AdapterConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rank and scale of an adapter. The product is `scale` * B A x, and A has `rank` rows.

    An activated adapter (aLoRA, https://arxiv.org/abs/2504.12397) changes a prompt's tokens after
    the last occurrence of `invocation`. The model alone computes earlier tokens.
    """

    rank: int
    alpha: float
    is_rank_stabilised: bool  # rsLoRA: `alpha` is divided by the root of the rank
    invocation: tuple[int, ...] = ()  # token ids; empty: the adapter computes the whole prompt
    joined_rank: int | None = None  # rank of gate and up of all experts; None: `rank`
    joined_alpha: float | None = None

    @property
    def of_joined(self) -> AdapterConfig:
        """The config with the rank and scale for gate and up of all experts as one tensor."""
        rank, alpha = self.joined_rank or self.rank, self.joined_alpha
        return AdapterConfig(rank, self.alpha if alpha is None else alpha, self.is_rank_stabilised)

    @property
    def scale(self) -> float:
        """The factor of the product."""
        return self.alpha / (math.sqrt(self.rank) if self.is_rank_stabilised else self.rank)


class _Wire(msgspec.Struct):
    r: int
    lora_alpha: float
    use_rslora: bool = False
    bias: str = "none"
    alora_invocation_tokens: tuple[_TokenId, ...] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


def read_adapter_config(content: bytes) -> AdapterConfig:
    """Read the JSON of an adapter_config.json. Raises AdapterRefused, which names the field."""
    try:
        fields = decode(content, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AdapterRefused(f"adapter_config.json: {error}") from error
    if fields.get("peft_type") != "LORA":
        raise AdapterRefused("adapter_config.json: peft_type is not LORA, the one that is served")
    _refuse_unserved(fields)
    try:
        wire = msgspec.convert(fields, _Wire)
    except msgspec.ValidationError as error:
        raise AdapterRefused(f"adapter_config.json: {error}") from error
    if wire.bias != "none":
        raise AdapterRefused("adapter_config.json: bias is not none: biases are not served")
    rank, alpha = (_of_joined(name, getattr(wire, name) or {}) for name in _PATTERNS)
    in_range = all(0 < one <= MOST_RANK for one in (wire.r, rank) if one is not None)
    if not in_range or not all(map(math.isfinite, (wire.lora_alpha, alpha or 0.0))):
        raise AdapterRefused("adapter_config.json: r or lora_alpha is out of its range")
    invocation = wire.alora_invocation_tokens
    if invocation is not None and not 0 < len(invocation) <= MOST_INVOCATION:
        raise AdapterRefused(
            f"adapter_config.json: alora_invocation_tokens are not 1 to {MOST_INVOCATION} tokens"
        )
    return AdapterConfig(
        wire.r,
        wire.lora_alpha,
        wire.use_rslora,
        invocation or (),
        None if rank is None else int(rank),
        alpha,
    )


def _of_joined(field: str, pattern: Mapping[str, float]) -> float | None:
    """Return the value for gate and up as one tensor, and refuse every other pattern."""
    if pattern.keys() - {JOINED}:
        raise AdapterRefused(f"adapter_config.json: {field} is set, which is not served")
    return pattern.get(JOINED)


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    for name in sorted(fields.keys() - _WITHOUT_EFFECT - _READ):
        if fields[name]:
            raise AdapterRefused(f"adapter_config.json: {name} is set, which is not served")
