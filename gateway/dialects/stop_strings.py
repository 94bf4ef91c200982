"""The check of a request's stop strings, common to Anthropic's and Gemini's dialects."""

from collections.abc import Sequence

from gateway.config import Bounds
from gateway.errors import BadRequest


def checked_stops(stops: Sequence[str], bounds: Bounds, param: str) -> tuple[str, ...]:
    """Return the stop strings without repeats.

    `param` names the request's field of stop strings. Raises BadRequest for too many strings, or
    for an empty or too long string.
    """
    if len(stops) > bounds.max_stops:
        raise BadRequest(f"at most {bounds.max_stops} stop sequences are allowed", param=param)
    if not all(0 < len(stop) <= bounds.max_stop_chars for stop in stops):
        raise BadRequest(
            f"a stop sequence has 1 to {bounds.max_stop_chars} characters", param=param
        )
    return tuple(dict.fromkeys(stops))
