"""What the blocks of a model that is opened depend on, for their fingerprint.

Knows: which of it comes from files, from settings and from the device. Does not know: how 32 bytes
are made of it (`fingerprint`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.models.errors import OtherFiles
from engine.ranks.meeting.groups import RankGroups
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
NUMERICS_VERSION = 9


def origin_of(config: EngineConfig, outline: ModelOutline, group: RankGroups | None) -> BlockOrigin:
    """Of several ranks, the first one of each machine reads all weights for their digest.

    Raises OtherFiles where a machine's files are not those of rank 0's.
    """
    is_reader = group is None or not group.rank % config.ranks_per_node
    own = BlockOrigin(
        weights=_weights(config) if is_reader else bytes(DIGEST_BYTES),
        model=outline.model,
        tokenizer=tokenizer_digest(Path(config.model_dir)),
        weight_dtype=dtype_name(outline.dtype),
        kv=outline.layout,
        numerics=f"{outline.device.type}-{NUMERICS_VERSION}",
    )
    if group is None:
        return own
    origin = replace(own, weights=group.of_first(own.weights))
    if config.nnodes > 1:
        _check_same_files(own if is_reader else origin, group, config.model_dir)
    return origin


def _weights(config: EngineConfig) -> bytes:
    if config.load_format == "dummy":
        return dummy_digest(DUMMY_SEED)
    return weights_digest(Path(config.model_dir))


def _check_same_files(own: BlockOrigin, group: RankGroups, model_dir: str) -> None:
    if group.of_first(own.without_layout()) != own.without_layout():
        raise OtherFiles(f"{model_dir} has not the files that rank 0's machine has of the model")
