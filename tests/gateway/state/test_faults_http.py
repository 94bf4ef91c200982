"""A fault of the state as tenants, load balancers and scrapers see it, over HTTP with a fake
engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.auth import keyring
from gateway.state import faults
from gateway.state.sqlite import database
from tests.doubles.disk.damage import overwrite
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.waiting import wait_for

LIMITED = {"limits": {"requests_per_minute": 100, "budget": {"units": 1000}}}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make checks of faults and repeated look-ups of keys more frequent."""
    monkeypatch.setattr(faults, "CHECK_S", 0.1)
    monkeypatch.setattr(database, "CHECK_EVERY_S", 0.2)
    monkeypatch.setattr(keyring, "IDENTITY_TTL_S", 0.2)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def alone(tiny_model: Path, data_dir: Path) -> Iterator[Served]:
    with serving(config_of(tiny_model, data_dir), FakeEngine()) as gateway:
        yield gateway


def ready(gateway: Served) -> tuple[int, str]:
    answer = httpx.get(gateway.url + "/readyz", timeout=60)
    return answer.status_code, answer.json()["status"]


def damaged(gateway: Served, path: Path) -> tuple[int, str]:
    """Damage the file; return the health check's status and text.

    Callers repeat this until the fault is found, since writing back the WAL may repair the file.
    """
    overwrite(path, 1)
    return ready(gateway)


def chat(gateway: Served) -> str | None:
    """Send a chat; return its error code, or None if it is answered. Raises if it ends
    otherwise.
    """
    place: Any = {"base_url": gateway.url + "/v1", "api_key": gateway.key, "max_retries": 0}
    with openai.OpenAI(**place, timeout=60) as client:
        try:
            messages: Any = [{"role": "user", "content": "Hi"}]
            client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        except openai.InternalServerError as error:
            return error.code if error.status_code == 503 else str(error.status_code)
    return None


def limit(gateway: Served) -> None:
    """Give the demo tenant a rate and a budget."""
    admin = {"authorization": f"Bearer {gateway.admin_key}"}
    with httpx.Client(base_url=gateway.url, headers=admin, timeout=60) as http:
        tenants = http.get("/admin/tenants").json()["tenants"]
        [demo] = [tenant["id"] for tenant in tenants if tenant["name"] == "demo"]
        http.patch(f"/admin/tenants/{demo}", json=LIMITED).raise_for_status()


def test_a_damaged_state_is_red_and_a_typed_503(alone: Served, data_dir: Path) -> None:
    assert (chat(alone), ready(alone)) == (None, (200, "ready"))
    wait_for(lambda: damaged(alone, data_dir / "state.sqlite") == (503, "state_damaged"), 30)
    wait_for(lambda: chat(alone) == "state_damaged", 10)


def test_damaged_limits_are_red_and_stop_those_who_have_limits(
    alone: Served, data_dir: Path
) -> None:
    limit(alone)
    assert chat(alone) is None
    wait_for(lambda: damaged(alone, data_dir / "limits.sqlite") == (503, "limits_damaged"), 30)
    assert chat(alone) == "limits_damaged"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.mark.parametrize("workload", ["plain", "limited"])
def test_a_flushed_redis_is_red_and_a_typed_503(
    tiny_model: Path, data_dir: Path, tmp_path: Path, redis: RedisServer, workload: str
) -> None:
    import redis as client_of_redis

    for name, value in (("server_secret", "s"), ("pepper", "p"), ("admin_key", "sk-admin-")):
        (tmp_path / f"ratoon_{name}").write_text(value.ljust(64, "x"))
        (tmp_path / f"ratoon_{name}").chmod(0o400)
    settings = {"redis_url": redis.url, "redis_timeout_s": 5.0, "secrets_dir": str(tmp_path)}
    with serving(config_of(tiny_model, data_dir, **settings), FakeEngine()) as gateway:
        if workload == "limited":
            limit(gateway)
        assert (chat(gateway), ready(gateway)) == (None, (200, "ready"))
        with client_of_redis.Redis(port=redis.port) as admin:
            admin.flushall()
        wait_for(lambda: ready(gateway) == (503, "state_missing"), 20)
        wait_for(lambda: chat(gateway) == "state_missing", 10)
