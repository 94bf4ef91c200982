"""The games: random runs of users of a resource, with a game for each of Ratoon's resources.

Users wait for a resource, take it and give it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from tests.seams.given_back.gateway_resources import Bodies, Lane, Redis, Turns
from tests.seams.given_back.interleaving import Resource, play
from tests.seams.given_back.link_resources import Events, Queries, Routes
from tests.seams.given_back.owners import play_source, play_staging
from tests.seams.given_back.request_resources import Answers, PermitsOverRedis, WholeAnswers
from tests.seams.given_back.threads import play_compiler, play_lock, play_masks

WAITS: Mapping[str, Callable[[Random], Resource]] = {
    "body memory": lambda _: Bodies(),
    "fair executor": Lane,
    "first fetches": lambda _: Turns(),
    "link to Redis": lambda _: Redis(),
    "permits": PermitsOverRedis,
    "answers": lambda _: Answers(),
    "whole answers": lambda _: WholeAnswers(),
    "events of a request": lambda _: Events(),
    "queries of an engine": lambda _: Queries(),
    "routes": lambda _: Routes(),
}
"""Resources for which tasks of an event loop wait."""

HANDED_ON: Mapping[str, Callable[[int], int]] = {
    "mask threads": play_masks,
    "grammar compiler": play_compiler,
    "read-write lock": play_lock,
    "blocks lent to engines": play_source,
    "buffers of the disk": play_staging,
}
"""Resources that threads pass to each other, or one thread lends: games by seed and length."""


def play_any(name: str, seed: int) -> Counter[str]:
    """Play one game, and count how often users ended in each way. Raises NotGivenBack."""
    if name in WAITS:
        return play(WAITS[name], seed)
    return Counter({"handed on": HANDED_ON[name](seed)})
