"""The seconds of an engine's own step, measured at its start, beside the target between tokens.

Knows: a request of nobody's that decodes. Does not know: how steps are timed (`step_times.py`).
"""

from __future__ import annotations

import logging

from engine.core import EngineCore
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.sentinel.sentinel import NOBODY

PROMPT_TOKENS = 8
DECODES = 16  # steps of one token: the first ones teach the predictor most
_log = logging.getLogger(__name__)


def measure_step(core: EngineCore) -> None:
    """Decode for nobody, and log how long a step of one sequence takes beside the target.

    A warning where the target is shorter: it cannot be kept, whatever the load. The request reads
    and writes no cache, and counts nowhere.
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
