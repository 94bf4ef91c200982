"""An installation of two gateways and three engines: an operator's actions, and load on both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.disk.file.done_flushes import read_done
from tests.cli.console import Console
from tests.doubles.replicas.proxied_link import ProxiedLink
from tests.seams.support.machines import Machines
from tests.seams.support.replica_load import (
    AT_ONCE,
    PROMPTS,
    Load,
    Stream,
    body,
    cached,
    moved,
    states,
)
from tests.seams.support.server import Front


@dataclass
class Installation:
    """Both gateways and their engines."""

    machines: Machines
    one: Front
    two: Front

    @property
    def links(self) -> list[ProxiedLink]:
        return [one.link for one in self.machines.engines]

    def all_ready(self) -> bool:
        wanted = {link.name: "ready" for link in self.links}
        return states(self.one) == states(self.two) == wanted

    def is_away(self, link: ProxiedLink) -> bool:
        seen = {states(front)[link.name] for front in (self.one, self.two)}
        return seen <= {"stalled", "absent"}

    def moved(self) -> float:
        return moved(self.one) + moved(self.two)


def admin(front: Front, method: str, path: str, **sent: Any) -> Any:
    with front.client(front.admin_key) as client:
        answer = client.request(method, path, **sent)
        answer.raise_for_status()
        return answer.json()


def newest(front: Front) -> str:
    """Return the id of the newest tenant."""
    found: str = admin(front, "GET", "/admin/tenants")["tenants"][-1]["id"]
    return found


def heavy(front: Front) -> str:
    """Make a tenant whose partition is nearly the whole cache, and return its key."""
    key = front.new_tenant()
    admin(front, "PATCH", f"/admin/tenants/{newest(front)}", json={"weight": 100})
    return key


def delete_tenants(front: Front) -> None:
    """Delete all tenants but the first two."""
    for one in admin(front, "GET", "/admin/tenants")["tenants"][2:]:
        admin(front, "DELETE", f"/admin/tenants/{one['id']}")


def limit(front: Front, **limits: Any) -> None:
    """Set limits of the newest tenant."""
    admin(front, "PATCH", f"/admin/tenants/{newest(front)}", json={"limits": limits})


def asked(installed: Installation, key: str, count: int, **more: Any) -> list[int]:
    """Send `count` requests by both gateways in turn, and return the statuses."""
    with installed.one.client(key) as one, installed.two.client(key) as two:
        return [
            (one, two)[n % 2].post("/v1/completions", json=body(n, 1) | more).status_code
            for n in range(count)
        ]


def is_warm(front: Front, prefix_id: str) -> bool:
    return bool(admin(front, "GET", f"/admin/prefixes/{prefix_id}")["state"] == "warm")


def found_by(front: Front, text: str, key: str) -> int:
    """Send a request with this text; return its cached tokens."""
    asked = {"model": "tiny", "prompt": text, "max_tokens": 1}
    with front.client(key) as client:
        usage = client.post("/v1/completions", json=asked).json()["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


def flush(front: Front, tenant: str) -> Any:
    return admin(front, "POST", "/admin/cache/flush", json={"tenant": tenant})


def started(front: Front, tenant: str) -> int:
    """Count the requests of a tenant that engines have begun to compute."""
    found = (one["requests"] for one in front.stats()["tenants"] if one["id"] == tenant)
    return sum(found)


def verified(front: Front, *words: str) -> Any:
    target = ("--url", front.url, "--admin-key", front.admin_key, "--quick", "--json")
    return Console().type("verify-isolation", *target, *words).json


def most_cached(front: Front, key: str) -> int:
    """Return the maximum number of cached tokens of any prompt, without changing the cache."""
    return max(cached(front, number, key) for number in range(PROMPTS))


def has_noted(disk: Path) -> bool:
    """Return whether an engine has recorded on disk that it has done a flush."""
    return bool(read_done(disk))


class BothLoads:
    """Streams of one tenant through both gateways."""

    def __init__(self, installed: Installation) -> None:
        self.key = installed.one.new_tenant()
        self.tenant = newest(installed.one)
        self.loads = [Load(front, self.key) for front in (installed.one, installed.two)]

    @property
    def streams(self) -> list[Stream]:
        return [stream for load in self.loads for stream in load.streams]

    async def until_waits_in(self, link: ProxiedLink) -> list[asyncio.Task[Stream]]:
        more = [asyncio.create_task(self.loads[1].ask(n)) for n in range(AT_ONCE // 2)]
        return [*more, *await self.loads[0].until_waits_in(link.name)]

    async def close(self) -> None:
        for load in self.loads:
            await load.close()
