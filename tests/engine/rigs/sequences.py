"""Sequences for tests of the queue."""

from __future__ import annotations

import numpy as np

from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import NamespacePath
from tests.engine.rigs.rig import NAMESPACE


def waiting(
    request_id: str, *, flow: str = "flow", weight: float = 1.0, prompt_len: int = 8
) -> Sequence:
    """Make a waiting sequence."""
    return Sequence(
        request_id=request_id,
        client=b"gateway",
        flow=flow,
        weight=weight,
        path=NamespacePath.single(NAMESPACE),
        block_keys=bytes(16 * (prompt_len // 4)),
        sampling=SamplingParams(max_tokens=4),
        prompt_len=prompt_len,
        arrived=0.0,
        tokens=np.zeros(prompt_len + 4, np.int32),
        num_tokens=prompt_len,
    )
