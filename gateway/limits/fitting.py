"""Pure functions that compute the answer length with which a request fits its tenant's limits.

Elsewhere: how much of a limit is left at the moment (`limiter.py`).
"""

import math

from gateway.limits.token_bucket import ONE, capacity
from gateway.tenant_limits import Limits, Prices, TokenCounts


def at_once(limits: Limits) -> int | None:
    """Return the maximum number of tokens that one request may reserve; None: any number."""
    rate = limits.tokens_per_minute
    return None if rate is None else capacity(rate, limits.burst_s) // ONE


def within_rate(limits: Limits, prompt_tokens: int, answers: int) -> int | None:
    """Return how many tokens each of `answers` answers may have, at least 1; None: any number."""
    room = at_once(limits)
    return None if room is None else max(1, (room - prompt_tokens) // answers)


def of_the_rate(limits: Limits, least: int, most: int) -> int:
    """Return the number of tokens to reserve for a request that uses `least` to `most` tokens.

    The request reserves `most` tokens, or fewer if `most` never fits at once, but at least `least`.
    Use beyond the reservation is owed.
    """
    room = at_once(limits)
    return most if room is None else max(least, min(most, room))


def within_budget(
    left: int, prices: Prices, prompt_tokens: int, answers: int, expected: int
) -> int | None:
    """Return how many tokens of each answer the `left` micro-units buy; None: no token.

    If all of `left` buys n tokens for each of `answers` answers, an answer gets n / 2 tokens, or
    `expected` tokens if these are more, but at most n. The rest is for other requests.
    """
    left -= prices.cost(TokenCounts(computed=prompt_tokens))
    each = prices.generated * answers
    if left <= 0 or not each:
        return None
    most = math.floor(left / each)
    return max(most // 2, min(most, expected)) or None


def advice(limits: Limits, prompt_tokens: int, answers: int, most: int) -> str:
    """Advise how to change a request that may need more tokens (`most`) than the limits allow."""
    room = at_once(limits)
    if room is None:
        return ""
    wait = 60.0 if limits.burst_s is None else limits.burst_s
    needed = math.ceil(most * 60 / wait)
    each = (room - prompt_tokens) // answers
    shorter = f"set `max_tokens` to {each} or less, or " if each > 0 else ""
    return f", and {room} fit at once: {shorter}have a limit of {needed} tokens a minute set"
