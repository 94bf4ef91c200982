"""Flushed blocks do not come back from another engine, whether being sent or still cached there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.link.messages import FetchSource
from engine.link.query_messages import Flush, ForgetMarked
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.namespace import NamespacePath
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import (
    GIVE_UP_S,
    GREEDY,
    PATIENT,
    PROMPT,
    SIZE,
    WHOLE,
    A,
    B,
    Pair,
    blocks_of,
    keys_of,
    pair_of,
)
from tests.seams.support.real_engine import CLIENT, RealEngine

FLUSHES: list[dict[str, Any]] = [{}, {"flow": A.hex()}, {"namespace": bytes(A)}]


@contextmanager
def flushed_pair(checkpoint: Checkpoint, tmp_path: Path, *, flush_s: float) -> Iterator[Pair]:
    """Make two engines that do not fetch blocks for `flush_s` seconds after a flush of them."""
    patience = replace(PATIENT, flush=flush_s)
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock"), patience=patience) as pair:
        yield pair
        pair.expect_nothing_left()


def flush(engine: RealEngine, which: dict[str, Any]) -> None:
    engine.link.say(Flush(query_id="", **which), CLIENT)
    engine.step()


def fetched(pair: Pair, name: str) -> int:
    return pair.here.finished(name).reused.fetched


def on_the_way(pair: Pair, name: str, source: FetchSource) -> None:
    """Advance a fetch until all blocks are sent but the engine has not taken them yet."""
    before = pair.there.core.stats().exchange.sent_blocks
    pair.here.submit(name, PROMPT, GREEDY, namespace=A, source=source, loads="always")
    pair.here.step()
    give_up = time.monotonic() + GIVE_UP_S
    while pair.there.core.stats().exchange.sent_blocks < before + WHOLE:
        assert time.monotonic() < give_up
        pair.there.step()


def test_blocks_on_their_way_are_not_put_back(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with flushed_pair(checkpoint, tmp_path, flush_s=0.0) as pair:
        for at, which in enumerate(FLUSHES):
            name, other = f"flushed-{at}", f"control-{at}"
            computed = pair.compute(f"first-{at}", PROMPT, A)
            on_the_way(pair, name, pair.source())
            flush(pair.here, which)
            pair.until(lambda: pair.here.core.is_idle)
            assert pair.here.tokens(name) == computed
            assert fetched(pair, name) == 0
            pair.here.cache.flush()
            on_the_way(pair, other, pair.source())
            flush(pair.here, {"flow": B.hex()})
            pair.until(lambda: pair.here.core.is_idle)
            assert fetched(pair, other) == WHOLE * SIZE
            pair.forget()


def test_a_request_that_is_only_to_be_fetched_ends_with_the_flush(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with flushed_pair(checkpoint, tmp_path, flush_s=0.0) as pair:
        pair.compute("first", PROMPT, A)
        on_the_way(pair, "again", pair.source(only=True))
        flush(pair.here, {})
        pair.until(lambda: pair.here.core.is_idle)
        finished = pair.here.finished("again")
        assert (finished.reason, finished.completion_tokens) == ("length", 0)
        assert not blocks_of(pair.here, PROMPT, A)


@pytest.mark.parametrize("which", FLUSHES)
@pytest.mark.parametrize("flush_s", [60.0, 0.0], ids=["soon", "the control: later"])
def test_nothing_is_fetched_soon_from_an_engine_that_hears_of_the_flush_later(
    checkpoint: Checkpoint, tmp_path: Path, which: dict[str, Any], flush_s: float
) -> None:
    with flushed_pair(checkpoint, tmp_path, flush_s=flush_s) as pair:
        pair.compute("first", PROMPT, A)
        pair.compute("other", PROMPT, B)
        flush(pair.here, which)
        pair.fetch("again", PROMPT, A)
        assert fetched(pair, "again") == (0 if flush_s else WHOLE * SIZE)
        if which:  # positive control: only another tenant's blocks were flushed
            pair.fetch("others", PROMPT, B)
            assert fetched(pair, "others") == WHOLE * SIZE


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_prefix_that_its_tenant_has_deleted_is_not_fetched_back(
    checkpoint: Checkpoint, tmp_path: Path, is_marked: bool
) -> None:
    """The other engine learns of the deletion later. Its copy of the prefix has no mark."""
    with flushed_pair(checkpoint, tmp_path, flush_s=60.0) as pair:
        pair.compute("first", PROMPT, A)
        pair.compute("others", PROMPT, B)
        pair.fetch("again", PROMPT, A)
        assert fetched(pair, "again") == WHOLE * SIZE, "the control: its blocks are there"
        key = keys_of(PROMPT, A)[-KEY_BYTES:]
        if is_marked:
            mark(pair.here, PROMPT)
        delete(pair.here, key, is_marked=is_marked)
        assert not blocks_of(pair.here, PROMPT, A)
        pair.fetch("later", PROMPT, A)
        assert fetched(pair, "later") == 0
        pair.fetch("other", PROMPT, B)
        assert fetched(pair, "other") == WHOLE * SIZE, "another tenant's goes on"
        assert blocks_of(pair.there, PROMPT, A), "the control: it was to be had"
        delete(pair.there, key, is_marked=True)
        assert blocks_of(pair.there, PROMPT, A), "the control: it is not marked there"
        delete(pair.there, key, is_marked=False)
        assert not blocks_of(pair.there, PROMPT, A)
        assert blocks_of(pair.there, PROMPT, B)


def mark(engine: RealEngine, prompt: Sequence[int]) -> None:
    """Mark a cached prompt, as a request does."""
    ids, now = np.array(prompt, np.int32), engine.core.components.clock()
    lease = engine.cache.read(NamespacePath.single(A), ids, owner=A.hex(), now=now)
    assert lease is not None
    engine.cache.retain(lease, ids, 300.0, now=now)
    engine.cache.release(lease, now=now)


def delete(engine: RealEngine, key: bytes, *, is_marked: bool) -> None:
    """Delete a prefix. With `is_marked` False, delete it even if this engine has no mark."""
    said = ForgetMarked(query_id="", flow=A.hex(), prefix_id=key, is_marked=is_marked)
    engine.link.say(said, CLIENT)
    engine.step()
