"""Log-probabilities, packed as in messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from engine.link.event_messages import TokenLogprobs


def pack_logprobs(chosen: float, top: Sequence[tuple[int, float]]) -> TokenLogprobs:
    """Pack the chosen token's log-probability, and (token id, logprob) of the likeliest tokens."""
    ids, values = [token_id for token_id, _ in top], [logprob for _, logprob in top]
    packed = struct.pack(f"<{len(ids)}i", *ids), struct.pack(f"<{len(values)}f", *values)
    return TokenLogprobs(chosen, *packed)
