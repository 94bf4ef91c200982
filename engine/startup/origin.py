"""The origin of a model's KV blocks, on which their bits depend: weights, settings, device ...

Elsewhere: the computation of the fingerprint from the origin (`fingerprint`).
"""

from __future__ import annotations

from dataclasses import replace
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
from engine.startup.metadata import ModelMetadata

DUMMY_SEED = 0
# Increase this whenever a kernel's result may differ in a bit from the latest release.
NUMERICS_VERSION = 9


def origin_of(
    config: EngineConfig, metadata: ModelMetadata, group: RankGroups | None
) -> BlockOrigin:
    """Describe the origin of KV blocks. Only rank 0 reads all weights to hash them."""
    is_reader = group is None or group.rank == 0
    own = BlockOrigin(
        weights=_weights(config) if is_reader else bytes(DIGEST_BYTES),
        model=metadata.model,
        tokenizer=tokenizer_digest(Path(config.model.model_dir)),
        weight_dtype=dtype_name(metadata.dtype),
        kv=metadata.layout,
        numerics=f"{metadata.device.type}-{NUMERICS_VERSION}{_beside_adapters(config)}",
    )
    if group is None:
        return own
    return replace(own, weights=group.of_first(own.weights))


def _beside_adapters(config: EngineConfig) -> str:
    """Return a name for the different numerics of an engine with adapters, or "".

    With adapters, another kernel quantises inputs. With adapters of experts, a step that uses an
    adapter also rounds the experts' inner product.
    """
    model = config.model
    if model.adapters_dir is None:
        return ""
    return f"-adapters-{model.adapter_rank}{'-experts' * model.adapter_experts}"


def _weights(config: EngineConfig) -> bytes:
    if config.model.load_format == "dummy":
        return dummy_digest(DUMMY_SEED)
    return weights_digest(Path(config.model.model_dir))
