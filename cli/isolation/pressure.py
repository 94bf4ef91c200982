"""Pushes a tenant's blocks into a lower tier, by its own later prompts under a low ceiling.

Every tenant keeps its share of each tier whatever others ask, so others' prompts do not push a
small tenant's blocks down. A ceiling on the tenant itself does: so low that the tiers above the
wanted one hold only a few of its prompts, and high enough that the wanted one holds several. That
takes few prompts on a server of any size, and no other tenant loses anything.

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
from cli.isolation.cells import ENTRY_POINTS, Tier
from cli.isolation.server_facts import ServerFacts

_IDS = next(entry for entry in ENTRY_POINTS if entry.kind == "ids" and not entry.stream)
_KEPT, _ON_THE_WAY = 3, 2  # prompts that fit under the ceiling in the tier, and in those above
_ORDER = (Tier.DEVICE, Tier.HOST, Tier.DISK)
_PIECES = 4  # prompts among which the filling tokens are divided
_LOOKS, _LOOK_S = 40, 0.05


class NotReached(Exception):
    """It would take more tokens to push blocks into the tier than may be spent on it."""


@dataclass(frozen=True, slots=True)
class Squeeze:
    """What pushes a prompt into a tier: a ceiling, as a share, and tokens to ask for under it."""

    ceiling: float
    fill_tokens: int


def squeeze(facts: ServerFacts, tier: Tier, prompt_tokens: int) -> Squeeze:
    """The ceiling and tokens for a prompt of `prompt_tokens` and a lower tier of the server."""
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
        """The ceiling for a tenant whose prompt is to be pushed into `tier`."""
        return squeeze(self._facts, tier, prompt_tokens).ceiling

    async def push(self, tier: Tier, key: str, prompt_tokens: int) -> None:
        """Ask, as the tenant under the ceiling, for as much as pushes its first prompt down."""
        wanted = squeeze(self._facts, tier, prompt_tokens).fill_tokens
        if wanted > self._max_fill_tokens:
            raise NotReached(f"it takes {wanted} tokens to get blocks to the {tier}")
        length = min(max(wanted // _PIECES, prompt_tokens), self._facts.max_model_len - 2)
        drawn = await self._asker.fresh_prompt(key, wanted)
        for start in range(0, wanted, length):
            await self._ask_twice(key, Prompt("", drawn.ids[start : start + length]))
        await self._copied()

    async def _ask_twice(self, key: str, prompt: Prompt) -> None:
        """Ask twice, because a prompt that was asked only once would not displace one asked twice.

        Under a random salt, so that no cell finds the first tokens of these prompts.
        """
        salt = {"cache_salt": secrets.token_hex(8)}
        for _ in range(2):
            await self._asker.ask(key, _IDS, prompt, salt)

    async def _copied(self) -> None:
        """Wait until no copy is under way, but not for ever on a busy server."""
        for _ in range(_LOOKS):
            stats: dict[str, Any] = await self._client.call("GET", STATS)
            if not any(move["under_way"] for move in stats["tiers"]["moves"]):
                return
            await asyncio.sleep(_LOOK_S)
