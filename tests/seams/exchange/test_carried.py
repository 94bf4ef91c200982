"""A pinned prefix is exported from one engine and imported into another, bit by bit."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from engine.config import EngineConfig
from engine.exchange.carrying import HELD_S, IDLE_S
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.event_messages import StepReply
from engine.link.messages import SamplingParams, pack_token_ids
from engine.link.query_messages import Pin, Pinned
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.rigs.checkpoints import RECIPES, make_checkpoint
from tests.engine.rigs.rig import CLIENT
from tests.seams.support.real_engine import Bounds, RealEngine

SIZE = 16
TOKENS = [(7 * i * i + 3) % 60 + 1 for i in range(3 * SIZE)]
HERE, THERE = Namespace(b"h" * 16), Namespace(b"t" * 16)  # namespaces of two installations
BOUNDS = Bounds(num_blocks=64, block_size=SIZE, max_batch_tokens=64, max_running=4)
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def asked(engine: RealEngine, query: object) -> object:
    engine.link.say(query, CLIENT)  # type: ignore[arg-type]
    engine.step()
    return [one for one in engine.link.sent[CLIENT] if not isinstance(one, StepReply)][-1]


def pin(engine: RealEngine, namespace: Namespace) -> Pinned:
    path, ids = NamespacePath.single(namespace), np.array(TOKENS, np.int32)
    keys = block_keys(path, ids, SIZE)
    query = Pin(
        query_id="p",
        pin_id="px",
        token_ids=pack_token_ids(TOKENS),
        namespace=namespace,
        block_keys=keys,
    )
    engine.link.say(query, CLIENT)
    engine.run()
    return [one for one in engine.link.sent[CLIENT] if isinstance(one, Pinned)][-1]


def begin(engine: RealEngine, shape: PrefixUnits, import_id: str = "im") -> ImportState:
    ids = np.array(TOKENS, np.int32)
    found = asked(
        engine,
        BeginImport(
            query_id="b",
            import_id=import_id,
            token_ids=pack_token_ids(TOKENS),
            namespace=THERE,
            block_keys=block_keys(NamespacePath.single(THERE), ids, SIZE),
            unit_bytes=shape.unit_bytes,
            state_units=shape.state_units,
        ),
    )
    assert isinstance(found, ImportState)
    return found


def read(engine: RealEngine, first: int = 0, count: int = 0) -> PrefixUnits:
    found = asked(engine, ReadPrefix(query_id="r", pin_id="px", first=first, count=count))
    assert isinstance(found, PrefixUnits)
    return found


def state(engine: RealEngine, query: object) -> ImportState:
    found = asked(engine, query)
    assert isinstance(found, ImportState)
    return found


MODELS = ["llama", "deepseek-v2", "qwen3.5", "granite-hybrid", "gpt-oss"]


@pytest.fixture(params=MODELS, scope="module")
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(RECIPES[request.param], directory).model_dir


def freed(config: EngineConfig) -> EngineConfig:
    """Return the config in which KV outside windows is freed, if the model has sliding windows."""
    if "gpt-oss" not in config.model.model_dir:
        return config
    return replace(config, cache=replace(config.cache, windows="freed"))


@pytest.fixture
def pair(model_dir: Path) -> tuple[RealEngine, RealEngine]:
    one, other = (RealEngine(str(model_dir), BOUNDS, over=freed) for _ in range(2))
    assert pin(one, HERE).code is None
    return one, other


def carry(one: RealEngine, other: RealEngine) -> PrefixUnits:
    shape = read(one)
    assert begin(other, shape).is_ready
    for first in range(shape.blocks + shape.state_units):
        payload = read(one, first, 1).payload
        assert len(payload) == shape.unit_bytes
        written = WriteImport(query_id="w", import_id="im", first=first, payload=payload)
        assert state(other, written).code is None
    assert state(other, EndImport(query_id="e", import_id="im")).code is None
    return shape


def test_what_was_carried_is_found_and_gives_the_same_answer(
    pair: tuple[RealEngine, RealEngine],
) -> None:
    expect_carried(*pair)


@pytest.mark.parametrize(
    ("recipe", "ranks", "stages"), [("llama", 2, 2), ("llama", 1, 3), ("qwen3.5", 2, 1)]
)
def test_several_ranks_carry_every_rank_s_part(
    recipe: str, ranks: int, stages: int, tmp_path: Path
) -> None:
    model_dir = str(make_checkpoint(RECIPES[recipe], tmp_path).model_dir)
    bounds = dataclasses.replace(BOUNDS, ranks=ranks, stages=stages)
    with (
        closing(RealEngine(model_dir, bounds)) as one,
        closing(RealEngine(model_dir, bounds)) as other,
        closing(RealEngine(model_dir, BOUNDS)) as single,
    ):
        assert pin(one, HERE).code is None
        expect_carried(one, other)
        before = read(one, 0, 3).payload
        one.submit("running", [*TOKENS, 1, 2], GREEDY, namespace=HERE)
        one.step()
        assert read(one, 0, 3).payload == before, "also between steps under way"
        one.run()
        assert len(one.tokens("running")) == GREEDY.max_tokens
        # different, so an import between these engines is refused
        assert single.fingerprint != one.fingerprint


def expect_carried(one: RealEngine, other: RealEngine) -> None:
    shape = carry(one, other)
    assert shape.blocks == 3
    assert other.steps == [], "nothing was computed"
    assert pin(other, THERE).code is None
    assert other.steps == [], "and the pin has found it"
    assert (
        read(other, 0, 3 + shape.state_units).payload == read(one, 0, 3 + shape.state_units).payload
    )
    prompt = [*TOKENS, 5, 6, 7]
    for engine, namespace in ((one, HERE), (other, THERE)):
        engine.submit("a", prompt, GREEDY, namespace=namespace)
        engine.run()
        assert engine.finished("a").reused.tokens == 3 * SIZE
    assert other.tokens("a") == one.tokens("a")
    other.submit("cold", prompt, GREEDY, namespace=THERE, use_cache=False)
    other.run()
    assert other.tokens("cold") == other.tokens("a")


def test_nothing_is_in_the_cache_before_the_end(pair: tuple[RealEngine, RealEngine]) -> None:
    one, other = pair
    shape = read(one)
    free = other.cache.capacity.pool().free
    assert begin(other, shape).is_ready
    payload = read(one, 0, 2).payload
    state(other, WriteImport(query_id="w", import_id="im", first=0, payload=payload))
    early = state(other, EndImport(query_id="e", import_id="im"))
    assert early.code == "invalid_request"
    other.submit("a", TOKENS, GREEDY, namespace=THERE)
    other.run()
    assert other.finished("a").reused.tokens == 0
    dropped = state(other, EndImport(query_id="e", import_id="im", is_kept=False))
    assert dropped.code is None
    other.cache.flush()
    assert other.cache.capacity.pool().free == free
    gone = state(other, EndImport(query_id="e", import_id="im"))
    assert gone.code == "prefix_not_carried"


def test_what_the_tree_has_is_not_written_over(pair: tuple[RealEngine, RealEngine]) -> None:
    one, other = pair
    assert pin(other, THERE).code is None
    before = read(other, 0, 3).payload
    shape = read(one)
    assert begin(other, shape).is_ready
    for first in range(shape.blocks + shape.state_units):
        noise = bytes([7]) * shape.unit_bytes
        state(other, WriteImport(query_id="w", import_id="im", first=first, payload=noise))
    assert state(other, EndImport(query_id="e", import_id="im")).code is None
    assert read(other, 0, 3).payload == before


def test_an_import_that_nobody_goes_on_with_is_dropped(
    pair: tuple[RealEngine, RealEngine],
) -> None:
    one, other = pair
    carried = other.core.components.carried
    shape = read(one)
    assert begin(other, shape).is_ready
    now = other.core.components.clock()
    carried.drop_late(now + IDLE_S - 1.0)
    assert carried.is_holding
    carried.drop_late(now + IDLE_S + 1.0)
    assert not carried.is_holding
    carry(one, other)
    carried.drop_late(other.core.components.clock() + HELD_S + 1.0)
    assert not carried.is_holding
    other.expect_nothing_left()


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, -1), (0, 5000), (2**62, 1), (4000, 1)])
def test_units_that_are_not_there_are_refused(
    pair: tuple[RealEngine, RealEngine], first: int, count: int
) -> None:
    one, other = pair
    assert read(one, first, count).code == "invalid_request"
    shape = read(one)
    begin(other, shape)
    payload = bytes(shape.unit_bytes)
    written = WriteImport(query_id="w", import_id="im", first=max(first, 4000), payload=payload)
    assert state(other, written).code == "invalid_request"
    half = WriteImport(query_id="w", import_id="im", first=0, payload=payload[:-1])
    assert state(other, half).code == "invalid_request"


def test_another_size_and_too_many_at_once_are_refused(
    pair: tuple[RealEngine, RealEngine],
) -> None:
    one, other = pair
    shape = read(one)
    smaller = PrefixUnits(query_id="", unit_bytes=shape.unit_bytes - 1)
    assert begin(other, smaller).code == "prefix_not_carried"
    assert begin(other, shape, "first").is_ready
    assert begin(other, shape, "second").is_ready
    assert begin(other, shape, "third").code == "no_room_to_pin"


def test_an_import_that_is_pinned_makes_room_for_another(
    pair: tuple[RealEngine, RealEngine],
) -> None:
    one, other = pair
    shape = carry(one, other)
    assert begin(other, shape, "second").is_ready
    assert begin(other, shape, "third").code == "no_room_to_pin", "the control: not pinned yet"
    assert pin(other, THERE).code is None
    assert begin(other, shape, "third").is_ready
    assert begin(other, shape, "fourth").code == "no_room_to_pin"


def test_a_prefix_that_is_not_pinned_is_not_read(model_dir: Path) -> None:
    engine = RealEngine(str(model_dir), BOUNDS)
    assert isinstance(engine.link, MemoryLink)
    assert read(engine).code == "prefix_not_carried"
