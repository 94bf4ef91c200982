"""The engine actor registers a ready engine, drains it when asked, and reports its errors.

The engine is real and runs on a CPU. There is no Ray.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]
from msgspec.structs import replace

from cli.cluster.actor import EngineActor, EngineReport, composed
from cli.cluster.registry import make_state, open_registry
from cli.cluster.settings import ClusterSettings, read_settings
from cli.serving.link_key import link_key_file
from gateway.state.records import RegisteredEngine
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.gateway.redis_server import redis_server
from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import wait_for

START_S = 60.0


@pytest.fixture
def settings(tmp_path: Path) -> ClusterSettings:
    model = write_tiny_model(tmp_path / "tiny", config=RUNNABLE)
    given = {
        "model": str(model), "data_dir": str(tmp_path / "data"), "engine_port": two_free_ports(),
        "max_engines": 2, "load_format": "dummy", "num_threads": 1, "cache_tokens": 2048,
        "host_cache_tokens": 0, "disk_cache_gib": 0, "max_model_len": 512,
    }  # fmt: skip
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(given))
    settings = read_settings(tmp_path / "cluster.yaml")
    make_state(tmp_path / "data", settings.shared)
    link_key_file("tcp://any:1", None, tmp_path / "data", make=True)
    return settings


def actor_of(settings: ClusterSettings) -> EngineActor:
    return EngineActor(msgspec.json.encode(settings), 0, "127.0.0.1")


def said(actor: EngineActor) -> EngineReport:
    return msgspec.json.decode(actor.report(), type=EngineReport)


def registered(settings: ClusterSettings) -> list[RegisteredEngine]:
    async def look() -> list[RegisteredEngine]:
        async with open_registry(Path(settings.data_dir), settings.shared) as registry:
            return await registry.registered_engines()

    return asyncio.run(look())


def test_an_engine_is_registered_while_it_is_ready_and_drained_when_asked(
    settings: ClusterSettings,
) -> None:
    actor = actor_of(settings)
    assert (said(actor).state, said(actor).wait_s, registered(settings)) == ("starting", None, [])
    wait_for(lambda: said(actor).state == "ready", START_S)
    wait_for(lambda: (said(actor).wait_s, said(actor).used) == (0.0, 0.0), START_S)
    wait_for(lambda: len(registered(settings)) == 1, START_S)
    [engine] = registered(settings)
    assert said(actor).why == ""
    assert engine.address == actor.address == f"tcp://127.0.0.1:{settings.port(0)}"
    assert engine.fingerprint
    assert engine.beat_at is not None
    assert abs(engine.beat_at - time.time()) < START_S
    actor.drain()
    wait_for(lambda: said(actor).state == "drained", START_S)
    assert registered(settings) == []


def test_the_first_engines_compute_prompts_where_the_settings_say_so(
    settings: ClusterSettings,
) -> None:
    def roles(settings: ClusterSettings) -> list[str]:
        return [composed(settings, number, "tcp://127.0.0.1:1").process.role for number in range(3)]

    assert roles(settings) == ["both"] * 3
    assert roles(replace(settings, prefill_engines=1)) == ["prefill", "decode", "decode"]


def test_one_that_cannot_be_registered_says_so(settings: ClusterSettings, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        redis.kill()
        shared = replace(settings.shared, redis_url=redis.url)
        key = str(tmp_path / "data" / "link.key")
        actor = actor_of(replace(settings, shared=shared, link_key_file=key))
        wait_for(lambda: said(actor).why == "not registered: state_unavailable", START_S)
        assert said(actor).state == "ready"
        actor.drain()
        wait_for(lambda: said(actor).state == "drained", START_S)


def test_an_engine_that_cannot_run_here_says_why(settings: ClusterSettings, tmp_path: Path) -> None:
    (tmp_path / "data" / "link.key").write_text("no key")
    actor = actor_of(settings)
    wait_for(lambda: said(actor).state == "failed", START_S)
    assert "holds no key" in said(actor).why
