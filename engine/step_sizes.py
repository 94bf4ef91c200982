"""For how many tokens steps are recorded, and so how many cost no more than fewer.

Knows: numbers of decodes and of other tokens. Does not know: how a step is recorded
(`graphs/steps.py`), or what it is made of.
"""

from __future__ import annotations

BESIDE = (0, 8, 16, 32, 64, 128, 192, 256)  # decodes beside other rows
NEW_TOKENS = (64, 128, 256)
TOTALS = (384, 512, 640, 768, 1024, 1280)  # decodes and new tokens together, in larger rooms
MOST_NEW = 1024  # in steps that are recorded, unless the config says otherwise


def filled(decodes: int, new: int) -> int:
    """The most tokens beside so many decodes that have the room in which `new` are computed.

    `new` itself where a step is too large for any.
    """
    places = next((count for count in BESIDE if count >= decodes), decodes)
    total = next((total for total in TOTALS if total >= places + new), places + new)
    return max(new, min(total - places, MOST_NEW))
