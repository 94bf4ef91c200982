"""Phi-3, Phi-3.5 and Phi-4 mini: Llama with joined QKV and joined gate and up matrices.

The models with long contexts have LongRoPE. In Phi-4 mini, rope rotates three quarters of a head.
"""

from __future__ import annotations

from typing import Any

from engine.models.architectures.dense.llama import Llama, LlamaFields, usual_rope
from engine.models.architectures.fields.windows import in_every_layer
from engine.models.names import CheckpointNames

ORIGINAL, USUAL_CONTEXT = "original_max_position_embeddings", 4096
OLDER_NAMES = ("su", "yarn")


def _rope(raw: LlamaFields) -> dict[str, Any] | None:
    """Return the rope scaling, with the original context length added.

    The top-level field for this length takes precedence over the one in the scaling.
    """
    given = usual_rope(raw)
    if given is None:
        return None
    original = raw.original_max_position_embeddings
    found = (
        {ORIGINAL: USUAL_CONTEXT, **given} if original is None else {**given, ORIGINAL: original}
    )
    kind = given.get("rope_type") or given.get("type")
    return {**found, "rope_type": "longrope"} if kind in OLDER_NAMES else found


PHI3 = Llama(
    "phi3",
    windows=in_every_layer,
    rope_fields=_rope,
    partial_rotary=True,
    names=CheckpointNames(
        merged=(
            (".qkv_proj.", (".q_proj.", ".k_proj.", ".v_proj.")),
            (".gate_up_proj.", (".gate_proj.", ".up_proj.")),
        )
    ),
    examples=("Phi-3 mini, medium", "Phi-3.5 mini", "Phi-4", "Phi-4 mini"),
)
