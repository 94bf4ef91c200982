"""The reader of adapter_config.json of a PEFT adapter: its rank and scale, or why it is refused.

An adapter is refused if it sets a field that this module does not read, unless the field does not
affect the computation. The error names the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from engine.models.adapters.errors import AdapterRefused
from engine.models.model_files import decode

# The fields about training or about PEFT itself, and those that only list the file's tensors.
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
# The only supported pattern. PEFT writes it for adapters of gate and up as one tensor.
JOINED = r".*\.gate_up_proj"
MOST_RANK = 1024  # larger than in any known adapter; the engine's limit is lower
MOST_INVOCATION = 256

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class AdapterConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rank and scale of an adapter. The product is `scale` * B A x, and A has `rank` rows.

    An activated adapter (aLoRA, https://arxiv.org/abs/2504.12397) is applied to the tokens from the
    last occurrence of `invocation` in the prompt on. Earlier tokens are computed without it.
    """

    rank: int
    alpha: float
    is_rank_stabilised: bool  # rsLoRA: `alpha` is divided by the square root of the rank
    invocation: tuple[int, ...] = ()  # token ids; empty: the adapter is applied to the whole prompt
    # Rank for gate and up of all experts as one tensor; None: `rank`.
    joined_rank: int | None = None
    joined_alpha: float | None = None

    @property
    def of_joined(self) -> AdapterConfig:
        """This config, with the rank and scale for gate and up of all experts as one tensor."""
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
    """Return the value for the pattern `JOINED`, or None. Refuse any other pattern."""
    if pattern.keys() - {JOINED}:
        raise AdapterRefused(f"adapter_config.json: {field} is set, which is not served")
    return pattern.get(JOINED)


def _refuse_unserved(fields: Mapping[str, Any]) -> None:
    for name in sorted(fields.keys() - _WITHOUT_EFFECT - _READ):
        if fields[name]:
            raise AdapterRefused(f"adapter_config.json: {name} is set, which is not served")
