"""The gateway process serves before an engine exists, ends on a signal, and refuses a bad start
with one line.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from gateway.config import GatewayConfig
from gateway.startup.cannot_start import CannotStart
from gateway.startup.composition import composed
from gateway.startup.first_start import FirstStart, ensure_first_start
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.forks.process import ForkedProcess, forked_module
from tests.doubles.ports import free_port


@contextmanager
def process(config: GatewayConfig, log: Path) -> Iterator[ForkedProcess]:
    running = forked_module(["gateway", msgspec.json.encode(config).decode()], log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def get_when_up(url: str) -> httpx.Response:
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url)
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def first_start(data_dir: Path) -> FirstStart:
    return asyncio.run(ensure_first_start(data_dir, clock=time.time))


def test_it_serves_before_the_engine_is_there_and_ends_on_a_signal(
    tiny_model: Path, tmp_path: Path
) -> None:
    keys = first_start(tmp_path)
    config = GatewayConfig(
        model_dir=str(tiny_model),
        model_name="tiny",
        data_dir=str(tmp_path),
        engines=(str(tmp_path / "engine.sock"),),
        port=free_port(),
        admin_port=free_port(),
    )
    url, admin_url = (f"http://127.0.0.1:{port}" for port in (config.port, config.admin_port))
    with process(config, tmp_path / "log") as running:
        assert get_when_up(f"{url}/healthz").status_code == 200
        assert get_when_up(f"{admin_url}/healthz").status_code == 200
        assert httpx.get(f"{url}/readyz").status_code == 503
        tenant = {"authorization": f"Bearer {keys.demo_key}"}
        operator = {"authorization": f"Bearer {keys.admin_key}"}
        assert httpx.get(f"{url}/v1/models", headers=tenant).status_code == 200
        assert httpx.get(f"{url}/admin/tenants", headers=operator).status_code == 404
        assert httpx.get(f"{admin_url}/admin/tenants", headers=operator).status_code == 200
        assert httpx.get(f"{admin_url}/v1/models", headers=tenant).status_code == 404
        away = httpx.post(
            f"{url}/v1/completions", headers=tenant, json={"model": "tiny", "prompt": "x"}
        )
        assert (away.status_code, away.headers["retry-after"]) == (503, "2")
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert "Traceback" not in (tmp_path / "log").read_text()


def damage_template(model: Path, data: Path) -> Path:
    (model / "chat_template.jinja").write_text("{% if %}")
    return model


def damage_tokenizer(model: Path, data: Path) -> Path:
    (model / "tokenizer.json").write_text("{}")
    return model / "tokenizer.json"


def lose_tokenizer(model: Path, data: Path) -> Path:
    (model / "tokenizer.json").unlink()
    return model / "tokenizer.json"


def damage_tokenizer_config(model: Path, data: Path) -> Path:
    (model / "tokenizer_config.json").write_text("[1]")
    return model / "tokenizer_config.json"


def damage_keys(model: Path, data: Path) -> Path:
    (data / "keys.env").write_text("RATOON_ADMIN_KEY=\n")
    return data / "keys.env"


def lose_state(model: Path, data: Path) -> Path:
    (data / "state.sqlite").unlink()
    return data


def empty_limits(model: Path, data: Path) -> Path:
    (data / "limits.sqlite").write_bytes(b"")
    return data


def fresh(tmp_path: Path, workers: int = 1) -> GatewayConfig:
    first_start(tmp_path / "data")
    return GatewayConfig(
        model_dir=str(write_tiny_model(tmp_path / "model")),
        model_name="tiny",
        data_dir=str(tmp_path / "data"),
        engines=(str(tmp_path / "engine.sock"),),
        port=free_port(),
        workers=workers,
    )


async def begin(config: GatewayConfig) -> None:
    async with composed(config, FakeEngine()):
        pass


@pytest.mark.parametrize(
    "damage",
    [
        damage_template,
        damage_tokenizer,
        lose_tokenizer,
        damage_tokenizer_config,
        damage_keys,
        lose_state,
        empty_limits,
    ],
)
def test_without_a_good_file_it_does_not_start(
    tmp_path: Path, damage: Callable[[Path, Path], Path]
) -> None:
    config = fresh(tmp_path)
    asyncio.run(begin(config))
    named = damage(Path(config.model_dir), Path(config.data_dir))
    with pytest.raises(CannotStart) as refusal:
        asyncio.run(begin(config))
    if damage in (lose_state, empty_limits):
        assert "--new-state" in str(refusal.value)
    else:
        assert damage is damage_template or str(named) in str(refusal.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_that_cannot_be_ends_with_one_line(tmp_path: Path, workers: int) -> None:
    config = fresh(tmp_path, workers)
    damage_tokenizer(Path(config.model_dir), Path(config.data_dir))
    with process(config, tmp_path / "log") as running:
        assert running.wait(60) != 0
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    told = [line for line in said.splitlines() if "the gateway cannot start: " in line]
    assert 1 <= len(told) <= workers
    assert "tokenizer.json" in told[0]


@pytest.mark.parametrize(("module", "loaded"), [("main", []), ("process", [b"fastapi", b"numpy"])])
def test_a_process_loads_what_it_needs_and_the_parent_of_workers_less(
    module: str, loaded: list[bytes]
) -> None:
    script = (
        f"import sys, gateway.startup.{module};"
        "heavy = {'torch', 'triton', 'transformers', 'lmdb', 'fastapi', 'numpy'};"
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert found.stdout.split() == loaded
