"""What the blocks of a model that is opened depend on, for their fingerprint.

Knows: which of it comes from files, from settings and from the device. Does not know: how 32 bytes
are made of it (`fingerprint`).
"""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from engine.ranks.groups import RankGroups
from engine.startup.device import dtype_name
from engine.startup.fingerprint import (
    DIGEST_BYTES,
    BlockOrigin,
    dummy_digest,
    tokenizer_digest,
    weights_digest,
)
from engine.startup.outline import ModelOutline

DUMMY_SEED = 0
# Raised whenever a kernel's results may differ in a bit from those of the release before.
NUMERICS_VERSION = 8


def origin_of(config: EngineConfig, outline: ModelOutline, group: RankGroups | None) -> BlockOrigin:
    """Of several ranks, the first one alone reads all weights for their digest."""
    model_dir = Path(config.model_dir)
    if config.load_format == "dummy":
        weights = dummy_digest(DUMMY_SEED)
    elif group is None or not group.rank:
        weights = weights_digest(model_dir)
    else:
        weights = bytes(DIGEST_BYTES)
    return BlockOrigin(
        weights=weights if group is None else group.of_first(weights),
        model=outline.model,
        tokenizer=tokenizer_digest(model_dir),
        weight_dtype=dtype_name(outline.dtype),
        kv=outline.layout,
        numerics=f"{outline.device.type}-{NUMERICS_VERSION}",
    )
