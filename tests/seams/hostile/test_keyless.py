"""Requests without a key cost little, and no other client waits for them.

The benchmark `python -m benchmarks.gateway.hostile` measures the waits.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.doubles.gateway.attacks import Target, ask
from tests.doubles.gateway.floods import FLOODS
from tests.doubles.gateway.raw_socket import statuses
from tests.doubles.processes import busy_seconds, resident_mib
from tests.seams.support.server import Server

MOST_MIB = 32.0
AT_ONCE = 4  # number of clients; each sends at least FEWER_MIB, so together they exceed MOST_MIB
HANG_S = 60.0
LONE_S = 5.0  # seconds, below the deadline for a request's head
AS_A_HEALTH_CHECK = (
    "descriptions", "packed descriptions", "the largest file", "wrong methods", "options", "heads",
    "wrong paths", "no key", "parameters", "fields", "cookies", "escapes",
)  # fmt: skip
TIMES_A_HEALTH_CHECK = 6.0  # earlier versions needed a hundred health checks' time
CHUNKED = "transfer-encoding: chunked\r\n"


def target_of(server: Server) -> Target:
    return Target(urlsplit(server.url).port or 0, server.demo_key, "handbook")


async def beside(target: Target, name: str) -> int:
    """Count a tenant's answers while `AT_ONCE` clients run the flood `name`."""
    floods = [asyncio.create_task(FLOODS[name](target)) for _ in range(AT_ONCE)]
    answered = 0
    while not all(flood.done() for flood in floods) or not answered:
        await ask(target)
        await asyncio.sleep(0.05)  # leaves CPU time for the test
        answered += 1
    await asyncio.gather(*floods)
    return answered


@pytest.mark.parametrize("name", FLOODS)
def test_others_are_answered_and_memory_is_bounded(server: Server, name: str) -> None:
    target, gateway = target_of(server), server.children()["gateway"]
    asyncio.run(ask(target))
    before = resident_mib(gateway)
    assert asyncio.run(asyncio.wait_for(beside(target, name), HANG_S)) > 0
    assert resident_mib(gateway) - before < MOST_MIB
    assert server.children()["gateway"] == gateway


def test_no_refusal_costs_more_than_a_few_health_checks(server: Server) -> None:
    """The test compares CPU time, which other processes do not change."""
    target, gateway = target_of(server), server.children()["gateway"]

    def cost(name: str) -> float:
        before = busy_seconds(gateway)
        asyncio.run(asyncio.wait_for(FLOODS[name](target), HANG_S))
        return busy_seconds(gateway) - before

    cost("health checks")
    most = TIMES_A_HEALTH_CHECK * cost("health checks")
    costs = {name: cost(name) for name in AS_A_HEALTH_CHECK}
    assert {name: seconds for name, seconds in costs.items() if seconds > most} == {}


def status(server: Server, *packets: bytes) -> list[int]:
    return statuses(target_of(server).port, *packets, timeout_s=LONE_S)


LAST = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def test_a_head_whose_last_byte_comes_alone(server: Server) -> None:
    assert status(server, LAST) == [200]
    for cut in range(1, 5):
        assert status(server, LAST[:-cut], LAST[-cut:]) == [200]
    assert status(server, *(bytes([byte]) for byte in LAST)) == [200]


OFFER = "connection: upgrade\r\nupgrade: h2c\r\n"


@pytest.mark.parametrize("offer", ["", OFFER])
def test_an_offer_of_another_protocol_loses_nothing(server: Server, offer: str) -> None:
    """The body arrives complete, and so does that of a second request sent with the first."""
    body = '{"prompt": "hello", "model": "handbook"}'
    asked = (
        f"POST /tokenize HTTP/1.1\r\nhost: x\r\nx-api-key: {server.demo_key}\r\n{offer}"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    assert status(server, asked + asked + LAST) == [200, 200, 200]
    middle = len(asked) // 3
    assert status(server, asked[:middle], asked[middle:] + asked + LAST) == [200, 200, 200]


@pytest.mark.parametrize("who", ["tenant", "operator"])
def test_a_key_counts_in_the_head_only(server: Server, who: str) -> None:
    key, path = {
        "tenant": (server.demo_key, "/v1/models"),
        "operator": (server.admin_key, "/admin/tenants"),
    }[who]
    field = f"x-api-key: {key}\r\n"
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\n{CHUNKED}"
    in_head = f"{head}{field}\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()
    in_trailer = f"{head}\r\n2\r\n{{}}\r\n0\r\n{field}\r\n".encode()
    assert status(server, in_head, LAST) == [200, 200]
    assert status(server, in_trailer, LAST) == [401, 200]
    assert status(server, in_head[:-5], b"0\r\n" + field.encode(), b"\r\n", LAST) == [200, 200]
