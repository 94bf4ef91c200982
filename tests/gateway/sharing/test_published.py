"""A gateway pins its published prefixes in engines, and shares only prefixes that are pinned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.errors import NoRoomToPin
from engine.link.query_messages import Pin
from gateway.errors import Unavailable
from gateway.prompts.prefix_tokens import PrefixTokens
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import TokenIds, Tokenizer
from gateway.sharing import published
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.pinning import RETRY_S, Pinning
from gateway.sharing.published import Published, PublishedParts, in_force
from gateway.state.records import EVERYONE, PrefixSource, PublishedPrefix
from gateway.state.store import R
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine
from tests.doubles.waiting import until
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put

TEXT = "Be brief and be kind to everyone who asks you something."
WITHIN_S = 20.0


def no_tokens(name: str) -> Pin:
    return Pin(pin_id=name, token_ids=b"", namespace=b"", block_keys=b"")


class Away(MemoryStore):
    """A store that can be unreachable."""

    is_away = False

    async def every(self, kind: type[R]) -> list[R]:
        if self.is_away:
            raise Unavailable("away")
        return await super().every(kind)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("REFRESH_S", 0.08), ("LOOK_S", 0.01)):
        monkeypatch.setattr(published, name, seconds)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Gateway:
    """A gateway's view of the published prefixes."""

    def __init__(
        self, model: Path, store: MemoryStore, engine: FakeEngine, pool: ThreadPoolExecutor
    ) -> None:
        self.reader = PrefixTokens(
            Tokenizer.load(model), ChatTemplate.load(model, Tokenizer.load(model).control)
        )
        self.store, self.engine, self.index = store, engine, PublishedIndex()
        namespaces = Namespaces(b"s" * 32, published=self.index)
        self.published = Published(
            PublishedParts(
                store, self.reader.of, self.reader.text, namespaces, self.index, engine, pool
            )
        )

    def blocks(self, text: str = TEXT, group_id: str | None = None) -> int:
        found = self.index.match(self.tokens(text), group_id, WELCOME.block_size)
        return found.blocks if found else 0

    def tokens(self, text: str) -> TokenIds:
        return self.reader.of(PrefixSource(text=text))


@pytest.fixture
async def gateway(tiny_model: Path, pool: ThreadPoolExecutor) -> AsyncIterator[Gateway]:
    gateway = Gateway(tiny_model, Away(), FakeEngine(), pool)
    async with gateway.published.kept():
        yield gateway


def prefix(name: str = "rules", version: int = 1, text: str = TEXT) -> PublishedPrefix:
    source = PrefixSource(text=text)
    return PublishedPrefix.new(name, version, EVERYONE, source, created_at=float(version))


def test_of_every_name_the_latest_that_is_not_deleted_is_in_force() -> None:
    old, new, other = prefix(), prefix(version=2), prefix("other")
    assert in_force([old, new, other]) == [new, other]
    assert in_force([old, replace(new, deleted_at=1.0)]) == [old]
    assert in_force([replace(old, deleted_at=1.0)]) == []


async def test_what_another_gateway_stores_is_found_and_pinned_without_news(
    gateway: Gateway,
) -> None:
    record = prefix()
    await gateway.store.create(record)
    await until(lambda: record.id in gateway.engine.pinned, WITHIN_S)
    assert gateway.blocks() == 3
    assert gateway.engine.pinned[record.id] == 4  # the last block is not full, so it is not shared
    await put(gateway.store, replace(record, deleted_at=5.0))
    await until(lambda: record.id not in gateway.engine.pinned, WITHIN_S)
    assert gateway.blocks() == 0


async def test_of_a_model_with_states_the_last_whole_block_is_the_end_of_a_pin(
    gateway: Gateway,
) -> None:
    """End the pin of a model with states at the last whole block, from whose state requests
    continue.
    """
    gateway.engine.welcome = replace(WELCOME, has_states=True)
    record = prefix()
    await gateway.store.create(record)
    await until(lambda: record.id in gateway.engine.pinned, WITHIN_S)
    assert gateway.engine.pinned[record.id] == gateway.blocks() == 3
    assert gateway.blocks(TEXT[:-20]) == 0
    gateway.engine.welcome = replace(WELCOME, engine_id="another")
    await until(lambda: gateway.engine.pinned[record.id] == 4, WITHIN_S)  # positive control
    assert gateway.blocks(TEXT[:-20]) == 2


async def test_a_new_engine_is_sent_everything_again(gateway: Gateway) -> None:
    record = prefix()
    await gateway.store.create(record)
    await until(lambda: record.id in gateway.engine.pinned, WITHIN_S)
    gateway.engine.pinned.clear()
    await gateway.published.renew()
    assert gateway.engine.pinned == {}  # positive control: the same engine gets no second request
    gateway.engine.welcome = replace(WELCOME, engine_id="another")
    await until(lambda: record.id in gateway.engine.pinned, WITHIN_S)


async def test_an_engine_that_outlived_a_deletion_lets_go(gateway: Gateway) -> None:
    gone, unknown = replace(prefix(), deleted_at=2.0), "px_of_a_gateway_that_is_ahead"
    await gateway.store.create(gone)
    gateway.engine.pinned = {gone.id: 3, unknown: 3}
    gateway.engine.welcome = replace(WELCOME, engine_id="another")
    await until(lambda: gone.id not in gateway.engine.pinned, WITHIN_S)
    assert unknown in gateway.engine.pinned


async def test_while_the_state_is_away_what_was_known_stays(gateway: Gateway) -> None:
    assert isinstance(gateway.store, Away)
    await gateway.store.create(prefix())
    await until(lambda: gateway.blocks() == 3, WITHIN_S)
    gateway.store.is_away = True
    with pytest.raises(Unavailable):
        await gateway.published.renew()
    assert gateway.blocks() == 3


async def test_a_prefix_the_model_cannot_encode_leaves_others_alone(gateway: Gateway) -> None:
    said = [{"role": "user", "content": "REFUSED"}]
    bad = replace(prefix("bad"), source=PrefixSource(messages=said))
    good = prefix("good")
    await gateway.store.create(bad)
    await gateway.store.create(good)
    await until(lambda: good.id in gateway.engine.pinned, WITHIN_S)
    assert "not this" in (gateway.published.refusal(bad.id) or "")
    assert gateway.published.refusal(good.id) is None


async def test_one_shorter_than_a_block_is_not_pinned(gateway: Gateway) -> None:
    short, good = prefix("short", text="short"), prefix("good")
    await gateway.store.create(short)
    await gateway.store.create(good)
    await until(lambda: good.id in gateway.engine.pinned, WITHIN_S)
    assert set(gateway.engine.pinned) == {good.id}


async def test_without_an_engine_nothing_is_in_force(
    tiny_model: Path, pool: ThreadPoolExecutor
) -> None:
    gateway = Gateway(tiny_model, MemoryStore(), FakeEngine(None), pool)
    await gateway.store.create(prefix())
    await gateway.published.renew()
    assert gateway.blocks() == 0
    gateway.engine.welcome = WELCOME
    await gateway.published.renew()
    assert gateway.blocks() == 3


async def test_a_prefix_that_is_not_pinned_is_not_shared(gateway: Gateway) -> None:
    record = prefix()
    gateway.engine.pin_error = NoRoomToPin("full")
    await gateway.store.create(record)
    await until(lambda: gateway.published.refusal(record.id) == "full", WITHIN_S)
    await until(lambda: gateway.blocks() == 0, WITHIN_S)
    gateway.engine.pin_error = None
    # another engine gets the request at once
    gateway.engine.welcome = replace(WELCOME, engine_id="another")
    await until(lambda: record.id in gateway.engine.pinned, WITHIN_S)
    await until(lambda: gateway.blocks() == 3, WITHIN_S)  # positive control


async def test_a_refusal_is_asked_again_later() -> None:
    engine, clock = FakeEngine(), ManualClock()
    pinning = Pinning(engine, monotonic=clock)
    engine.pin_error = NoRoomToPin("full")

    def bring() -> None:
        pinning.bring("engine", {"a"}, set(), no_tokens)

    bring()
    await until(lambda: pinning.refusal("a") == "full", WITHIN_S)
    engine.pin_error = None
    bring()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.pinned == {}
    clock.advance(RETRY_S)
    bring()
    await until(lambda: "a" in engine.pinned, WITHIN_S)
    assert pinning.refusal("a") is None
    await pinning.close()


async def test_a_pin_that_fails_in_any_other_way_is_logged_and_asked_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, clock = FakeEngine(), ManualClock()
    pinning = Pinning(engine, monotonic=clock)
    engine.pin_error = RuntimeError("nobody thought of it")

    def bring() -> None:
        pinning.bring("engine", {"a"}, set(), no_tokens)

    bring()
    await until(lambda: pinning.refusal("a") is not None, WITHIN_S)
    assert "nobody thought of it" in caplog.text
    engine.pin_error = None
    clock.advance(RETRY_S)
    bring()
    await until(lambda: "a" in engine.pinned, WITHIN_S)
    assert pinning.refusal("a") is None
    await pinning.close()
