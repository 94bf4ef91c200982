"""Several real engines behind sockets, used like one engine; only the model is a double."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from engine.errors import EngineUnavailable
from engine.link.cache_events import Added, CacheEvents, Cleared
from engine.link.interface import Engine
from gateway.config import GatewayConfig
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.flushes import FlushReader
from gateway.startup.engine_links import connected
from tests.doubles.engine.engine_process import BLOCK_SIZE
from tests.doubles.engine.engine_thread import EngineThread
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import generate
from tests.engine.rigs.streams import collect, welcomed
from tests.gateway.replicas.rig import until
from tests.gateway.state.memory_store import MemoryStore

PROMPT = list(range(40))


def config_of(directory: Path, *names: str, link_key_file: str | None = None) -> GatewayConfig:
    engines = tuple(str(directory / f"{name}.sock") for name in names)
    return GatewayConfig(
        model_dir="", model_name="", data_dir="", engines=engines, link_key_file=link_key_file
    )


def none_recorded() -> FlushReader:
    reader = FlushReader()
    reader.found(MemoryStore())
    return reader


def knows(engine: Engine) -> bool:
    """Return whether the router's index has all blocks of a prompt and its answer."""
    blocks = sum(one.known_blocks for one in engine.replicas.values())
    return blocks == (len(PROMPT) + 3) // BLOCK_SIZE  # the last token's KV is not computed


async def test_one_engine_is_no_set(tmp_path: Path) -> None:
    with EngineThread(str(tmp_path / "a.sock")):
        async with connected(config_of(tmp_path, "a"), none_recorded()) as engine:
            await welcomed(engine)
            assert not isinstance(engine, EngineSet)
            assert engine.replicas == {}


async def test_the_router_hears_where_a_prompt_is_cached(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.sock") for name in "ab"]
    with EngineThread(paths[0]), EngineThread(paths[1]):
        async with connected(config_of(tmp_path, "a", "b"), none_recorded()) as engine:
            await until(lambda: all(one.state == "ready" for one in engine.replicas.values()))
            tokens, _ = await collect(engine, generate("first", PROMPT))
            assert tokens == expected_output(PROMPT, 4)
            await until(lambda: knows(engine))
            ends = [(await collect(engine, generate(f"r{n}", PROMPT)))[1] for n in range(6)]
            assert {end.reused.tokens for end in ends} == {39}, "always the one that has it"


async def test_a_wrong_index_costs_a_miss_and_no_more(tmp_path: Path) -> None:
    """Survive a wrong index, which costs a cache miss.

    The engine compares tokens itself, so it computes blocks that only the index has.
    """
    paths = [str(tmp_path / f"{name}.sock") for name in "ab"]
    with EngineThread(paths[0]), EngineThread(paths[1]):
        async with connected(config_of(tmp_path, "a", "b"), none_recorded()) as engine:
            assert isinstance(engine, EngineSet)
            await until(lambda: all(one.state == "ready" for one in engine.replicas.values()))
            first = generate("first", PROMPT)
            _, end = await collect(engine, first)
            assert end.reused.tokens == 0
            await until(lambda: knows(engine))
            has = max(engine.replicas, key=lambda name: engine.replicas[name].known_blocks)
            [other] = {"0", "1"} - {has}
            engine.heard(has, CacheEvents(number=0, changes=(Cleared(),)))
            lie = Added("device", first.block_keys)
            engine.heard(other, CacheEvents(number=0, changes=(Cleared(), lie)))
            tokens, end = await collect(engine, generate("misled", PROMPT))
            assert (tokens, end.reused.tokens) == (expected_output(PROMPT, 4), 0), "a miss"
            tokens, end = await collect(engine, generate("again", PROMPT))
            assert (tokens, end.reused.tokens) == (expected_output(PROMPT, 4), 39), "now it is so"


async def test_a_key_for_engines_elsewhere_is_not_for_sockets_here(tmp_path: Path) -> None:
    key = tmp_path / "link.key"
    key.write_bytes(zmq.curve_keypair()[1] + b"\n")
    key.chmod(0o600)
    given = config_of(tmp_path, "a", "b", link_key_file=str(key))
    with EngineThread(str(tmp_path / "a.sock")):
        async with connected(given, none_recorded()) as engine:
            await welcomed(engine)
            states = {name: one.state for name, one in engine.replicas.items()}
            assert states == {"0": "ready", "1": "absent"}
            await collect(engine, generate("a", PROMPT))
    async with connected(given, none_recorded()) as engine:
        with pytest.raises(EngineUnavailable):
            await collect(engine, generate("a", PROMPT))
