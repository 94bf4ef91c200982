"""Pushes what a tenant asked into a slower tier, by its own later prompts under its own ceiling.

Every tenant keeps its share of each tier whatever others ask, so others' prompts do not push a
small one's blocks down. What does is a ceiling on the tenant itself: so low that the tiers above
the wanted one hold a few prompts of its and no more, and high enough that the wanted one holds
several. It takes few prompts on a server of any size, and nothing from anybody else.

Knows: sizes of tiers, ceilings. Does not know: the cells.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from dataclasses import dataclass
from typing import Any

from cli.admin_client import AdminClient
from cli.cache import STATS
from cli.isolation.asking import Asker, Prompt
from cli.isolation.plan import ENTRY_POINTS, Tier
from cli.isolation.server_facts import ServerFacts

_IDS = next(entry for entry in ENTRY_POINTS if entry.kind == "ids" and not entry.stream)
_KEPT, _ON_THE_WAY = 3, 2  # prompts that fit under the ceiling in the tier, and in those above
_ORDER = (Tier.DEVICE, Tier.HOST, Tier.DISK)
_PIECES = 4  # in which it is asked for
_LOOKS, _LOOK_S = 40, 0.05


class NotReached(Exception):
    """It would take more tokens to push blocks into the tier than may be spent on it."""


@dataclass(frozen=True, slots=True)
class Squeeze:
    """What pushes one prompt into a tier: a share of every tier, and tokens to ask for under it."""

    ceiling: float
    fill_tokens: int


def squeeze(facts: ServerFacts, tier: Tier, prompt_tokens: int) -> Squeeze:
    """For a prompt of so many tokens and a lower tier that the server has."""
    blocks = {name: size // facts.block_size for name, size in facts.tier_tokens.items()}
    above = [name for name in _ORDER[: _ORDER.index(tier)] if name in blocks]
    prompt = prompt_tokens // facts.block_size + 2  # a partial block, and the answer's
    ceiling = max(
        _KEPT * prompt / max(blocks[tier], 1),
        *(_ON_THE_WAY * prompt / max(blocks[name], 1) for name in above if name is not Tier.DEVICE),
        0.0,
    )
    ceiling = min(ceiling, 1.0)
    fill = sum(math.ceil(ceiling * blocks[name]) for name in above) + prompt
    return Squeeze(ceiling, fill * facts.block_size)


class Pressure:
    """Fills what one tenant may hold of the tiers above the one that is wanted."""

    def __init__(
        self, client: AdminClient, asker: Asker, facts: ServerFacts, max_fill_tokens: int
    ) -> None:
        self._client = client
        self._asker = asker
        self._facts = facts
        self._max_fill_tokens = max_fill_tokens

    def ceiling(self, tier: Tier, prompt_tokens: int) -> float:
        """What a tenant may hold of every tier whose prompts are to be pushed into `tier`."""
        return squeeze(self._facts, tier, prompt_tokens).ceiling

    async def push(self, tier: Tier, key: str, prompt_tokens: int) -> None:
        """Ask, as the tenant under the ceiling, for what pushes its first prompt down."""
        wanted = squeeze(self._facts, tier, prompt_tokens).fill_tokens
        if wanted > self._max_fill_tokens:
            raise NotReached(f"it takes {wanted} tokens to get blocks to the {tier}")
        length = min(max(wanted // _PIECES, prompt_tokens), self._facts.max_model_len - 2)
        drawn = await self._asker.fresh_prompt(key, wanted)
        for start in range(0, wanted, length):
            await self._ask_twice(key, Prompt("", drawn.ids[start : start + length]))
        await self._copied()

    async def _ask_twice(self, key: str, prompt: Prompt) -> None:
        """What was asked once only is no rival to a prompt that was asked twice.

        Under a salt of its own, so that no cell finds some of its first tokens there.
        """
        salt = {"cache_salt": secrets.token_hex(8)}
        for _ in range(2):
            await self._asker.ask(key, _IDS, prompt, salt)

    async def _copied(self) -> None:
        """Return when no copy is under way, or the server is too busy for that to be seen."""
        for _ in range(_LOOKS):
            stats: dict[str, Any] = await self._client.call("GET", STATS)
            if not any(move["under_way"] for move in stats["tiers"]["moves"]):
                return
            await asyncio.sleep(_LOOK_S)
