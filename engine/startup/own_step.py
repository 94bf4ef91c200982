"""The measurement, at the start, of a step with one sequence, to check the target for gaps."""

from __future__ import annotations

import logging

from engine.core import EngineCore
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.sentinel.sentinel import NOBODY

PROMPT_TOKENS = 8
DECODES = 16  # number of steps to measure; the predictor learns most from the first ones
_log = logging.getLogger(__name__)


def measure_step(core: EngineCore) -> None:
    """Decode a request that belongs to no tenant, and log the seconds of a step and the target.

    If the target is shorter than the step, it can never be met, so log a warning. The request
    neither reads nor writes the cache, and is not counted.
    """
    core.run_own(
        Generate(
            request_id="own-step",
            token_ids=pack_token_ids([1] * PROMPT_TOKENS),
            namespaces=((0, bytes(16)),),
            block_keys=b"",
            flow=NOBODY,
            priority="batch",
            sampling=SamplingParams(max_tokens=DECODES + 1, temperature=0.0, ignore_eos=True),
            use_cache=False,
            is_counted=False,
            drafts=False,
        )
    )
    gaps = core.components.scheduler.gap_targets.stats()
    if gaps.is_too_short:
        _log.warning("%s", gaps.describe())
    else:
        told = "target between tokens: %.3g ms; a step of one sequence takes %.3g ms"
        _log.info(told, 1e3 * gaps.target_s, 1e3 * gaps.one_s)
