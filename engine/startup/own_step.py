"""The seconds of one sequence's step, measured at the start, and the target for gaps of tokens."""

from __future__ import annotations

import logging

from engine.core import EngineCore
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.sentinel.sentinel import NOBODY

PROMPT_TOKENS = 8
DECODES = 16  # steps of one token; the predictor learns most from the first steps
_log = logging.getLogger(__name__)


def measure_step(core: EngineCore) -> None:
    """Decode a request of no tenant, and log the seconds of a step and the target.

    If the target is shorter than the step, log a warning, since the target is then never met. The
    request neither reads nor writes the cache, and is not counted.
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
