"""For how many tokens steps are recorded, and so how many cost no more than fewer.

Knows: numbers of decodes and of other tokens. Does not know: how a step is recorded
(`graphs/steps.py`), or what it is made of.
"""

from __future__ import annotations

BESIDE = (0, 8, 16, 32, 64, 128, 192, 256)  # decodes beside other rows
NEW_TOKENS = (64, 128, 256)
TOTALS = (384, 512, 640, 768, 1024, 1280)  # decodes and new tokens together, in larger rooms
MOST_NEW = 1024  # in steps that are recorded, unless the config says otherwise
SHARING_NEW_TOKENS = (128, 256, 512)  # beside decodes that read prefixes together


def places_for(decodes: int) -> int:
    """Places of the rooms that hold so many decodes; these themselves where there is none."""
    return next((count for count in BESIDE if count >= decodes), decodes)


def new_tokens(places: int) -> list[int]:
    """For how many new tokens rooms are recorded beside so many places for decodes, ascending."""
    few = {new for new in NEW_TOKENS if places + new < TOTALS[0]}
    many = {total - places for total in TOTALS if total - places >= NEW_TOKENS[0]}
    return sorted(few | many)


def filled(decodes: int, new: int) -> int:
    """The most tokens beside so many decodes that have the room in which `new` are computed.

    `new` itself where a step is too large for any.
    """
    rooms = new_tokens(places_for(decodes))
    return next((most for most in rooms if new <= most <= MOST_NEW), new)
