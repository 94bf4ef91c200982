"""The real deployment of `docker-compose.yml` recovers when its services are killed one by one.

The tests run only if `RATOON_TEST_COMPOSE=1` and a Docker engine exists. They build images for
minutes, and nothing else should run on the machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from threading import Thread

import httpx
import pytest

from cli.options.engine_options import ENGINE_FLAGS
from tests.seams.support.composed import SERVICES, Composed, composed, run, soon, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(1800),  # the first build installs torch
]
# True if there is a disk tier, from which blocks come back after the engine's end.
HAS_DISK = any("disk" in name for name in ENGINE_FLAGS)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    with composed(tmp_path_factory.mktemp("composed")) as running:
        yield running


@pytest.fixture
def tenant(deployment: Composed) -> Iterator[httpx.Client]:
    """Return a client with the key of a new tenant, which sends its requests to the front proxy."""
    operator = {"Authorization": f"Bearer {deployment.secret('ratoon_admin_key')}"}
    with httpx.Client(base_url=deployment.admin_url, headers=operator, timeout=30) as admin:
        name = f"tenant-{uuid.uuid4().hex[:8]}"
        made = made_at_last(admin, "/admin/tenants", {"name": name})
        issued = made_at_last(admin, f"/admin/tenants/{made['id']}/keys", None)
    headers = {"Authorization": f"Bearer {issued['key']}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=60) as client:
        yield client


def made_at_last(admin: httpx.Client, path: str, body: dict[str, str] | None) -> dict[str, str]:
    """Send an operator's request, repeat it after a 503, and return the answer."""
    for _ in soon(20, 1.0):
        answer = admin.post(path, json=body)
        if answer.status_code != 503:
            break
    answer.raise_for_status()
    made: dict[str, str] = answer.json()
    return made


def cached(client: httpx.Client, question: str = "What is the door code for Oslo?") -> int:
    """Send a chat with a long system prompt, and return the number of cached tokens."""
    system = " ".join(f"The door code for room {number} is {number * 37}." for number in range(40))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "handbook", "messages": messages, "max_tokens": 4}
    # Each request has a new connection, for which the front proxy chooses a gateway.
    answer = client.post("/v1/chat/completions", json=body, headers={"connection": "close"})
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_tenant_is_made_chats_and_hits(tenant: httpx.Client) -> None:
    assert cached(tenant) == 0
    assert cached(tenant, "What is the door code for Bern?") > 100


def test_every_container_passes_its_health_check(deployment: Composed) -> None:
    for service in SERVICES:
        deployment.wait_healthy(service, 60)
    assert {deployment.health(service) for service in SERVICES} == {"healthy"}


@pytest.mark.parametrize("service", SERVICES)
def test_containers_have_no_rights_and_write_nothing_of_their_own(
    deployment: Composed, service: str
) -> None:
    found = deployment.container(service)
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert not host["Privileged"]
    assert 0 < host["Memory"] <= 8 << 30
    assert 0 < host["PidsLimit"] <= 1024
    assert found["Config"]["User"] not in ("", "0", "root")
    published = [port for port, binds in (host["PortBindings"] or {}).items() if binds]
    assert sorted(published) == (["8000/tcp", "8001/tcp"] if service == "front" else [])


def test_secrets_are_in_no_containers_description(deployment: Composed) -> None:
    told = str([deployment.container(service) for service in SERVICES])
    for name in ("ratoon_admin_key", "ratoon_server_secret", "ratoon_pepper", "redis_password"):
        assert deployment.secret(name) not in told
        assert f"/run/secrets/{name}" in told


def test_the_gateways_image_has_no_torch() -> None:
    asked_for = "print(u.find_spec('torch') is not None)"
    script = f"import gateway.startup.process, importlib.util as u; {asked_for}"
    for image, has_torch in (("ratoon-gateway", "False"), ("ratoon-engine", "True")):
        asked = run("docker", "run", "--rm", "--entrypoint=python", image, "-c", script)
        assert asked.stdout.strip() == has_torch, asked.stderr


def test_the_state_is_in_redis_and_both_gateways_have_it(
    deployment: Composed, tenant: httpx.Client
) -> None:
    files = deployment.compose("exec", "-T", "gateway-1", "ls", "/var/lib/ratoon").split()
    assert files == ["ballast", "keys.env", "server.json", "state.id"]
    lists = {
        deployment.compose("exec", "-T", service, "ratoon", "tenants", "list", "--json")
        for service in ("gateway-1", "gateway-2")
    }
    assert len(lists) == 1
    assert "tenant-" in lists.pop()


def test_redis_wants_its_password(deployment: Composed) -> None:
    ping = ("exec", "-T", "redis", "sh", "-c")
    assert "NOAUTH" in deployment.compose(*ping, "redis-cli ping")
    known = 'REDISCLI_AUTH="$(cat /run/secrets/redis_password)" redis-cli config get appendonly'
    assert "yes" in deployment.compose(*ping, known)


@pytest.mark.parametrize("service", ["gateway-1", "gateway-2", "redis"])
def test_nobody_notices_the_death_of(
    deployment: Composed, tenant: httpx.Client, service: str
) -> None:
    # enough requests for both gateways to look up the key, which they remember without Redis
    for _ in range(4):
        cached(tenant)
    killed = deployment.pid(service)
    deployment.kill(service)
    for _ in soon(10, 0.2):
        assert cached(tenant) > 100
    deployment.wait_successor(service, killed)
    deployment.wait_healthy(service, 60)


def test_the_front_is_back_soon(deployment: Composed, tenant: httpx.Client) -> None:
    cached(tenant)
    killed = deployment.pid("front")
    deployment.kill("front")
    deployment.wait_successor("front", killed)
    deployment.wait_ready(60)
    assert cached(tenant) > 100


def test_the_engine_is_back_soon(deployment: Composed, tenant: httpx.Client) -> None:
    cached(tenant)
    killed = deployment.pid("engine")
    deployment.kill("engine")
    deployment.wait_successor("engine", killed)
    deployment.wait_ready(120)
    cached(tenant)  # finds only blocks that had reached the disk, if any
    assert cached(tenant) > 100


def test_after_a_restart_of_everything_keys_are_known(
    deployment: Composed, tenant: httpx.Client
) -> None:
    cached(tenant)
    deployment.compose("restart", "--timeout", "20")
    deployment.wait_ready()
    assert (cached(tenant) > 100) == HAS_DISK
    assert cached(tenant) > 100


def test_a_stop_cuts_off_no_stream(deployment: Composed, tenant: httpx.Client) -> None:
    """The front proxy refuses new connections at once, and serves open ones to their end."""
    body = {"model": "handbook", "prompt": "x", "max_tokens": 1500, "ignore_eos": True}
    lines: list[str] = []
    with tenant.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        reading = Thread(target=lambda: lines.extend(answer.iter_lines()))
        stopping = Thread(target=deployment.compose, args=("stop",))
        reading.start()
        stopping.start()
        assert not all(is_open(deployment.url) for _ in soon(50, 0.2))
        told_before = len(lines)
        reading.join()
    stopping.join()
    # the stream had not ended when the front proxy stopped listening
    assert told_before < len(lines)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    deployment.compose("start")
    deployment.wait_ready()
    cached(tenant)


def is_open(url: str) -> bool:
    """Return whether a request on a new connection is answered."""
    try:
        httpx.get(f"{url}/healthz", timeout=5)
    except httpx.TransportError:
        return False
    return True
