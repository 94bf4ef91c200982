"""Facts about the server under test, for the tests and the report.

Knows: the routes that give them. Does not know: the tests.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from cli.admin_client import AdminClient
from cli.bench import first_model
from cli.cache import STATS
from cli.errors import ServerRefused
from cli.isolation.asking import Asker
from cli.isolation.cast import Member
from cli.isolation.cells import ENTRY_POINTS, Tier
from cli.prefixes import PREFIXES


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The server under test. `tier_tokens` has the size of each tier that it has, in tokens."""

    version: str | None
    model: str
    max_model_len: int
    fingerprint: str
    block_size: int
    tier_tokens: dict[str, int]
    always_load: bool  # whether the operator may set `cache.load`; an older server has no way
    publishes: bool

    def has(self, tier: Tier) -> bool:
        """Whether the tier can be tested here at all."""
        return tier not in (Tier.HOST, Tier.DISK) or tier in self.tier_tokens


async def look_at(
    client: AdminClient, session: aiohttp.ClientSession, url: str, member: Member
) -> ServerFacts:
    """Ask the server what it is; `member` is a temporary tenant."""
    stats = await client.call("GET", STATS)
    model = await first_model(session, url, member.key)
    asker = Asker(session, url, model, as_operator=client.beside_a_tenants_key)
    return ServerFacts(
        version=await _version(session, url),
        model=model,
        max_model_len=await _max_model_len(session, url, member.key),
        fingerprint=stats["fingerprint"],
        block_size=stats["pool"]["block_size"],
        tier_tokens=_tier_tokens(stats),
        always_load=await _may_insist(asker, member.key),
        publishes=await _has(client, PREFIXES),
    )


def _tier_tokens(stats: dict[str, Any]) -> dict[str, int]:
    size = stats["pool"]["block_size"]
    lower = {name: tier["total_blocks"] * size for name, tier in stats["tiers"]["lower"].items()}
    return {Tier.DEVICE: stats["pool"]["tokens"]["total"], **lower}


async def _max_model_len(session: aiohttp.ClientSession, url: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with session.get(url + "/v1/models", headers=headers) as response:
        models = (await response.json())["data"]
    return int(models[0]["max_model_len"])


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    async with session.get(url + "/openapi.json") as response:
        if response.status != 200:
            return None
        return str((await response.json())["info"]["version"])


async def _may_insist(asker: Asker, key: str) -> bool:
    try:
        await asker.ask(key, ENTRY_POINTS[0], await asker.fresh_prompt(key, 8))
    except ServerRefused as refusal:
        if refusal.status == 400:
            return False
        raise
    return True


async def _has(client: AdminClient, path: str) -> bool:
    try:
        await client.call("GET", path)
    except ServerRefused:
        return False
    return True
