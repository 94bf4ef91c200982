"""Two engines of two ranks each: what one fetches from the other, each rank has its slices of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import zmq

from engine.exchange.fetch import Patience
from engine.link.messages import Cancel
from engine.link.query_messages import Flush
from engine.link.tcp.curve import LinkKey
from engine.ranks.slices.lending import RanksAnswering
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.ranks.lying_rank import LyingRank
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import (
    BOUNDS,
    GREEDY,
    PROMPT,
    SIZE,
    WHOLE,
    A,
    B,
    Pair,
    blocks_of,
    pair_of,
)
from tests.seams.support.real_engine import CLIENT, RealEngine

TWO = replace(BOUNDS, ranks=2)
STAGES = replace(BOUNDS, stages=2)
SHORT_S = 1.0  # of silence
HASTY = Patience(least=30.0, unmeasured=30.0, stream=30.0)


@pytest.fixture(scope="module", params=[TWO, STAGES], ids=["layers divided", "stages"])
def kept(
    request: pytest.FixtureRequest,
    checkpoint: Checkpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    where = str(tmp_path_factory.mktemp("exchange") / "x.sock")
    with pair_of(checkpoint.model_dir, where, bounds=request.param) as pair:
        yield pair


@pytest.fixture
def pair(kept: Pair) -> Iterator[Pair]:
    """Two engines with empty caches, and afterwards none that holds a block."""
    yield kept
    kept.forget()


def slices_of(engine: RealEngine, prompt: Sequence[int], namespace: Namespace) -> list[bytes]:
    """What the ranks from 1 on have of each of a prompt's blocks."""
    path, ids = NamespacePath.single(namespace), np.array(prompt, np.int32)
    lease = engine.cache.read(path, ids, owner="", now=0.0)
    assert lease is not None
    assert engine.ranks is not None
    engine.ranks.catch_up()
    parts = sorted(engine.ranks.parts, key=lambda one: one.rank)
    readers = [one.exchange.memory.reader() for one in parts]
    blocks = lease.blocks.tolist()
    engine.cache.release(lease, now=0.0)
    return [b"".join(bytes(reader.read(block)) for reader in readers) for block in blocks]


def reused(pair: Pair, name: str = "again") -> int:
    return pair.here.finished(name).reused.fetched


def test_all_ranks_have_the_bytes_and_the_tokens_of_a_computed_prompt(pair: Pair) -> None:
    before = pair.fetched()
    computed = pair.compute("first", PROMPT, A)
    assert pair.fetch("again", PROMPT, A) == computed
    assert reused(pair) == WHOLE * SIZE
    for bytes_of in (blocks_of, slices_of):
        there, here = bytes_of(pair.there, PROMPT, A), bytes_of(pair.here, PROMPT, A)
        assert here == there
        assert len(set(here)) == WHOLE, "the control: no two are alike"
    after, exchange = pair.fetched(), pair.there.exchange
    assert exchange is not None
    assert after.blocks - before.blocks == WHOLE
    assert after.bytes - before.bytes > WHOLE * exchange.block_bytes, "those of all ranks"


def test_what_another_tenant_has_is_not_found_under_this_ones_namespace(pair: Pair) -> None:
    pair.compute("first", PROMPT, A)
    pair.fetch("other", PROMPT, B)
    assert reused(pair, "other") == 0
    pair.fetch("own", PROMPT[:70], A)  # the control
    assert reused(pair, "own") == 4 * SIZE


def test_only_what_is_not_here_is_fetched(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    pair.here.submit("begin", (*PROMPT[: 4 * SIZE + 5], *range(12)), GREEDY, namespace=A)
    pair.here.run()
    assert pair.fetch("again", PROMPT, A) == computed
    assert reused(pair) == (WHOLE - 4) * SIZE
    assert slices_of(pair.here, PROMPT, A)[4:] == slices_of(pair.there, PROMPT, A)[4:]


def test_a_prompt_that_is_computed_there_is_fetched_to_its_end(pair: Pair) -> None:
    pair.there.submit("first", PROMPT, GREEDY, namespace=A)
    pair.here.submit("first~2", PROMPT, GREEDY, namespace=A, source=pair.source("first"))
    pair.until(lambda: pair.here.core.is_idle and pair.there.core.is_idle)
    assert pair.here.tokens("first~2") == pair.there.tokens("first")
    assert reused(pair, "first~2") == WHOLE * SIZE
    assert slices_of(pair.here, PROMPT, A) == slices_of(pair.there, PROMPT, A)


@pytest.mark.parametrize("how", [Cancel("again"), Flush(query_id="")])
def test_one_that_is_left_writes_nothing_more(pair: Pair, how: Cancel | Flush) -> None:
    """Its slots are given to another prompt at once, whatever is on its way to either rank."""
    others = [(7 * i) % 50 for i in range(9 * SIZE)]
    pair.compute("first", PROMPT, A)
    pair.here.submit("again", PROMPT, GREEDY, namespace=A, source=pair.source(), loads="always")
    sent = pair.there.core.stats().exchange.sent_blocks
    pair.here.step()
    pair.until(lambda: pair.there.core.stats().exchange.sent_blocks > sent, is_stepped=True)
    pair.here.link.say(how, CLIENT)
    pair.here.submit("other", others, GREEDY, namespace=B)
    pair.until(lambda: pair.here.core.is_idle)
    assert pair.here.tokens("other") == pair.compute("control", others, B)
    assert slices_of(pair.here, others, B) == slices_of(pair.there, others, B)


def test_blocks_in_host_memory_are_sent_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    there = replace(TWO, num_blocks=14, host_blocks=20)
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock"), bounds=TWO, there=there) as pair:
        computed = pair.compute("first", PROMPT, A)
        pair.compute("others", [(3 * i) % 50 for i in range(12 * SIZE)], B)
        pair.until(lambda: not pair.there.core.components.copies.pending)
        path, ids = NamespacePath.single(A), np.array(PROMPT, np.int32)
        found = pair.there.cache.locate(path, ids)
        assert found.total > found.device  # else nothing is shown
        assert pair.fetch("again", PROMPT, A) == computed
        assert reused(pair) == found.total * SIZE
        pair.expect_nothing_left()


def test_another_division_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for here, there in ((TWO, BOUNDS), (BOUNDS, TWO), (TWO, STAGES)):
        with pair_of(
            checkpoint.model_dir, str(tmp_path / "x.sock"), bounds=here, there=there
        ) as pair:
            computed = pair.compute("first", PROMPT, A)
            assert pair.fetch("again", PROMPT, A) == computed
            assert (reused(pair), pair.fetched().failed) == (0, 1)
            pair.expect_nothing_left()


def test_over_tcp_holders_of_the_key_fetch(checkpoint: Checkpoint, tmp_path: Path) -> None:
    key = LinkKey(zmq.curve_keypair()[1])
    with pair_of(
        checkpoint.model_dir, "tcp://127.0.0.1:*", bounds=TWO, key=key, key_file=tmp_path / "key"
    ) as pair:
        computed = pair.compute("first", PROMPT, A)
        assert pair.fetch("again", PROMPT, A) == computed
        assert reused(pair) == WHOLE * SIZE
        assert list(pair.here.core.stats().exchange.fetched) == ["tcp"]
        assert pair.there.ranks is not None
        address = pair.there.ranks.parts[0].exchange.address
        assert address is not None
        assert address.startswith("tcp://127.0.0.1:"), "both ranks'"
        pair.expect_nothing_left()


def put_address(pair: Pair, address: str) -> None:
    """Let the engine that answers tell this as the address of its rank 1."""
    core = pair.there.core.components.exchange
    cast(RanksAnswering, core._answering)._addresses = (address,)


def hasty_pair(checkpoint: Checkpoint, tmp_path: Path) -> AbstractContextManager[Pair]:
    """Two engines of two ranks that give up soon."""
    where = str(tmp_path / "x.sock")
    return pair_of(checkpoint.model_dir, where, bounds=TWO, patience=HASTY, silence_s=SHORT_S)


@pytest.mark.parametrize("lies", [True, False])
def test_a_slice_that_is_another_or_does_not_come_ends_the_fetch(
    checkpoint: Checkpoint, tmp_path: Path, lies: bool
) -> None:
    """Rank 0's own blocks come and are sound, and count for nothing alone."""
    with (
        hasty_pair(checkpoint, tmp_path) as pair,
        closing(LyingRank(tmp_path / "lies", slice_bytes(pair))) as lying,
    ):
        addresses = cast(RanksAnswering, pair.there.core.components.exchange._answering)._addresses
        computed = pair.compute("first", PROMPT, A)
        put_address(pair, lying.address if lies else str(tmp_path / "nobody"))
        assert pair.fetch("again", PROMPT, A) == computed
        assert (reused(pair), pair.fetched().failed) == (0, 1)
        assert len(lying.asks) == int(lies)
        assert all(not ask.token_ids and not ask.spans for ask in lying.asks), "it hears no prompt"
        pair.expect_nothing_left()
        if lies:  # the control: the same, once rank 1's own address is told
            put_address(pair, addresses[0])
            pair.compute("second", PROMPT, A)
            assert pair.fetch("third", PROMPT, A) == computed
            assert reused(pair, "third") == WHOLE * SIZE
            pair.expect_nothing_left()


def test_an_engine_goes_on_whatever_address_another_tells(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    key = LinkKey(zmq.curve_keypair()[1])
    with pair_of(
        checkpoint.model_dir,
        "tcp://127.0.0.1:*",
        bounds=TWO,
        key=key,
        key_file=tmp_path / "key",
        patience=HASTY,
        silence_s=SHORT_S,
    ) as pair:
        computed = pair.compute("first", PROMPT, A)
        for number, told in enumerate(("tcp://none", "tcp://h:99999", "", "/" + 300 * "x")):
            put_address(pair, told)
            assert pair.fetch(f"again {number}", PROMPT, A) == computed
            assert reused(pair, f"again {number}") == 0
            pair.here.cache.flush()
            rest(pair)
        pair.expect_nothing_left()


def rest(pair: Pair) -> None:
    """Let the engine that asks forget that the other one was silent."""
    pair.here.core.components.exchange._fetches._resting.clear()


def test_an_engine_goes_on_however_long_the_reason_is_that_a_rank_says(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """A rank reports it to rank 0 in a message that is bounded."""
    with (
        hasty_pair(checkpoint, tmp_path) as pair,
        closing(LyingRank(tmp_path / "long", 0, why=400_000 * "x")) as long,
        closing(LyingRank(tmp_path / "short", 0, why="no")) as short,
    ):
        computed = pair.compute("first", PROMPT, A)
        for rank in (long, short):
            put_address(pair, rank.address)
            assert pair.fetch(rank.address, PROMPT, A) == computed
            assert reused(pair, rank.address) == 0
            assert len(rank.asks) == 1
            pair.here.cache.flush()
            rest(pair)
        pair.expect_nothing_left()


def slice_bytes(pair: Pair) -> int:
    assert pair.there.ranks is not None
    return pair.there.ranks.parts[0].exchange.block_bytes
