"""Pushes what was asked before into a slower tier, by asking for much else.

A canary shows when that has happened: a prompt asked when the cells' were, and as often, that is
asked again after each load of filling until it comes from the wanted tier. A canary is used once,
since whoever asks for a prompt brings it back up.

Knows: sizes of tiers. Does not know: the cells.
"""

from __future__ import annotations

from cli.isolation.asking import Asker, Prompt, Reading
from cli.isolation.cast import Member
from cli.isolation.plan import ENTRY_POINTS, Tier
from cli.isolation.server_facts import ServerFacts

_IDS = next(entry for entry in ENTRY_POINTS if entry.kind == "ids" and not entry.stream)
_CANARIES = 6
_FILLER_SHARE = 4  # of the device that one prompt takes: others must find room beside it


class NotReached(Exception):
    """What was asked did not come to the tier within the tokens that may be spent on it."""


class Pressure:
    """Fills tiers as a temporary tenant of its own."""

    def __init__(
        self, asker: Asker, facts: ServerFacts, filler: Member, max_fill_tokens: int
    ) -> None:
        self._asker = asker
        self._facts = facts
        self._filler = filler
        self._max_fill_tokens = max_fill_tokens
        self._canaries: list[Prompt] = []

    async def begin(self, length: int) -> None:
        """Ask for canaries of `length` tokens: called just before the cells' own prompts."""
        self._canaries = [
            await self._asker.fresh_prompt(self._filler.key, length) for _ in range(_CANARIES)
        ]
        for canary in self._canaries * 2:
            await self._ask(canary)

    async def push(self, tier: Tier) -> int:
        """Fill until a canary comes whole from `tier`; the tokens that took. NotReached."""
        needed = self._needed(tier)
        spent = 0
        for canary in reversed(self._canaries):  # the last: what came before it went before it
            if spent + needed > self._max_fill_tokens:
                raise NotReached(f"{spent} tokens were filled in, and it would take {needed} more")
            await self._fill(needed)
            spent += needed
            lay = (await self._ask(canary)).tiers
            if lay.get(tier) and lay[tier] == sum(lay.values()):
                return spent
            needed = max(self._needed(Tier.HOST) // 2, 1)
        raise NotReached(f"after {spent} tokens of other prompts it was not there")

    def _needed(self, tier: Tier) -> int:
        """Tokens of the tiers above."""
        sizes = self._facts.tier_tokens
        above = sizes[Tier.DEVICE]
        return above if tier is Tier.HOST else above + sizes.get(Tier.HOST, 0)

    async def _fill(self, tokens: int) -> None:
        """Ask for fresh prompts, each twice: what was used once is no rival to the cells'."""
        length = min(
            self._facts.tier_tokens[Tier.DEVICE] // _FILLER_SHARE, self._facts.max_model_len - 64
        )
        while tokens > 0:
            prompt = await self._asker.fresh_prompt(self._filler.key, length)
            for _ in range(2):
                await self._ask(Prompt("", prompt.ids[:length]))
            tokens -= length

    async def _ask(self, prompt: Prompt) -> Reading:
        return await self._asker.ask(self._filler.key, _IDS, prompt)
