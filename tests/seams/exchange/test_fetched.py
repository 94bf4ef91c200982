"""Fetched blocks equal computed blocks, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq

from engine.link.tcp.curve import LinkKey
from engine.startup.memory.lower_tiers import GIB
from engine.startup.warm_up import warm_up
from prefix_cache.eviction.shares import Quota
from prefix_cache.namespace import NamespacePath
from storage.disk.stats import DiskState
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
from tests.seams.support.real_engine import RealEngine


@pytest.fixture(scope="module")
def kept(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    where = str(tmp_path_factory.mktemp("exchange") / "x.sock")
    with pair_of(checkpoint.model_dir, where) as pair:
        yield pair


@pytest.fixture
def pair(kept: Pair) -> Iterator[Pair]:
    """Yield two engines with empty caches, and check afterwards that neither holds a block."""
    yield kept
    kept.forget()


def test_a_prompt_that_was_fetched_gives_the_tokens_and_bytes_of_a_computed_one(pair: Pair) -> None:
    before = pair.fetched()
    computed = pair.compute("first", PROMPT, A)
    assert pair.fetch("again", PROMPT, A) == computed
    reused = pair.here.finished("again").reused
    assert (reused.fetched, reused.tokens) == (WHOLE * SIZE, WHOLE * SIZE)
    assert blocks_of(pair.here, PROMPT, A) == blocks_of(pair.there, PROMPT, A)
    after = pair.fetched()
    assert (after.fetches - before.fetches, after.failed, after.blocks - before.blocks) == (
        1,
        0,
        WHOLE,
    )


def test_only_what_is_not_here_is_fetched_and_a_block_that_was_begun_is_not_copied(
    pair: Pair,
) -> None:
    begun = (*PROMPT[: 4 * SIZE + 5], *range(12))  # shares five tokens of the fifth block
    computed = pair.compute("first", PROMPT, A)
    pair.here.submit("begin", begun, GREEDY, namespace=A)
    pair.here.run()
    before = pair.counted()
    assert pair.fetch("again", PROMPT, A) == computed
    reused = pair.here.finished("again").reused
    assert reused.tiers.device == 4 * SIZE
    assert reused.tokens == WHOLE * SIZE
    of_this = [now - then for now, then in zip(pair.counted(), before, strict=True)]
    fetched, left = (WHOLE - 4) * SIZE, len(PROMPT) - WHOLE * SIZE
    assert of_this == [len(PROMPT), 4 * SIZE, fetched, left]
    assert blocks_of(pair.here, PROMPT, A)[4:] == blocks_of(pair.there, PROMPT, A)[4:]


def test_what_another_tenant_has_is_not_found_under_this_ones_namespace(pair: Pair) -> None:
    pair.compute("first", PROMPT, A)
    pair.fetch("other", PROMPT, B)
    assert pair.here.finished("other").reused.tokens == 0
    assert not blocks_of(pair.here, PROMPT, A)
    pair.fetch("own", PROMPT, A)  # positive control: the same tenant's blocks are found
    assert pair.here.finished("own").reused.fetched == WHOLE * SIZE


def test_a_prompt_that_is_computed_there_is_fetched_to_its_end(pair: Pair) -> None:
    """Both requests begin at once. `test_failures` shows that blocks arrive one by one."""
    pair.there.submit("first", PROMPT, GREEDY, namespace=A)
    pair.here.submit("first~2", PROMPT, GREEDY, namespace=A, source=pair.source("first"))
    pair.until(lambda: pair.here.core.is_idle and pair.there.core.is_idle)
    assert pair.here.tokens("first~2") == pair.there.tokens("first")
    assert pair.here.finished("first~2").reused.fetched == WHOLE * SIZE


def test_what_is_only_to_be_fetched_is_not_computed(pair: Pair) -> None:
    computed = pair.compute("first", PROMPT, A)
    only = pair.source(only=True)
    for name, namespace, fetched in (("warm", A, WHOLE), ("cold", B, 0)):
        pair.fetch(name, PROMPT, namespace, only)
        finished = pair.here.finished(name)
        assert (finished.reason, finished.completion_tokens) == ("length", 0)
        assert finished.reused.fetched == fetched * SIZE
    pair.here.submit("later", PROMPT, GREEDY, namespace=A)
    pair.here.run()
    assert pair.here.tokens("later") == computed
    assert pair.here.finished("later").reused.tiers.device == WHOLE * SIZE


def test_fetched_blocks_are_the_askers_own(pair: Pair) -> None:
    """The fetching engine charges the blocks to the request's flow, and reports them as read."""
    pair.there.submit("first", PROMPT, GREEDY, namespace=A, writer="a label")
    pair.there.run()
    pair.here.submit(
        "again", PROMPT, GREEDY, namespace=A, source=pair.source(), writer="another", loads="always"
    )
    pair.until(lambda: pair.here.core.is_idle)
    told = pair.here.finished("again").cache
    assert told.first_reads == {"a label": WHOLE * SIZE}
    assert told.written == 0  # the answer does not fill a block
    assert pair.here.core.stats().flows[A.hex()].blocks_held == WHOLE


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_blocks_in_lower_tiers_are_sent_too(
    checkpoint: Checkpoint, tmp_path: Path, tier: str
) -> None:
    where, small = str(tmp_path / "x.sock"), replace(BOUNDS, num_blocks=14)
    in_host, on_disk = replace(small, host_blocks=20), replace(small, disk_bytes=GIB // 16)
    bounds = in_host if tier == "host" else on_disk
    with pair_of(checkpoint.model_dir, where, there=bounds, disk_there=tmp_path / "disk") as pair:
        disk = pair.there.tiers.disk
        pair.until(lambda: disk is None or (disk.state is DiskState.UP and disk.is_answering))
        computed = pair.compute("first", PROMPT, A)
        # used a second time, since blocks used only once are not written to the disk
        pair.compute("twice", PROMPT, A)
        pair.compute("others", [(3 * i) % 50 for i in range(12 * SIZE)], B)
        settle(pair.there)
        path, ids = NamespacePath.single(A), np.array(PROMPT, np.int32)
        found = pair.there.cache.tree.match(path, ids).found
        assert found.total > found.device  # positive control: some blocks are in lower tiers
        assert pair.fetch("again", PROMPT, A) == computed
        assert pair.here.finished("again").reused.fetched == found.total * SIZE
        pair.expect_nothing_left()


@pytest.mark.parametrize("is_partition", [False, True])
def test_a_flow_keeps_as_much_of_what_it_fetches_as_of_what_it_computes(
    checkpoint: Checkpoint, tmp_path: Path, is_partition: bool
) -> None:
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock")) as pair:
        quotas, flow, held = pair.here.cache.quotas, A.hex(), []
        if is_partition:
            quotas.partition({flow: Quota(0.0, 0.1), B.hex(): Quota()}, {flow: WHOLE + 2})
        else:
            quotas.set(flow, Quota(0.0, 0.1))
        computed = pair.compute("first", PROMPT, A)
        for name, source in (("fetched", pair.source()), ("computed", None)):
            pair.here.submit(name, PROMPT, GREEDY, namespace=A, source=source, loads="always")
            pair.until(lambda: pair.here.core.is_idle)
            assert pair.here.tokens(name) == computed
            held.append(pair.here.core.stats().flows[flow].blocks_held)
            pair.here.cache.flush()
        assert pair.here.finished("fetched").reused.fetched == WHOLE * SIZE
        assert held[0] == held[1]
        assert (held[0] < WHOLE) == is_partition, "only a partition drops what nobody needs"


def settle(engine: RealEngine) -> None:
    engine.step()
    while engine.core.components.copies.pending:
        engine.step()
        time.sleep(0.001)


def test_what_was_fetched_is_there_after_a_restart(checkpoint: Checkpoint, tmp_path: Path) -> None:
    disk, bounds = tmp_path / "disk", replace(BOUNDS, disk_bytes=GIB // 16)
    where = str(tmp_path / "x.sock")
    with pair_of(checkpoint.model_dir, where, bounds=bounds, there=BOUNDS, disk=disk) as pair:
        computed = pair.compute("first", PROMPT, A)
        assert pair.fetch("again", PROMPT, A) == computed
        pair.here.core.spill(30.0)
    later = RealEngine(str(checkpoint.model_dir), bounds, disk=disk)
    try:
        assert warm_up(later.core.components) >= WHOLE
        later.submit("later", PROMPT, GREEDY, namespace=A, loads="always")
        later.run()
        assert later.tokens("later") == computed
        assert later.finished("later").reused.tokens == WHOLE * SIZE
    finally:
        later.close()


def test_over_tcp_holders_of_the_key_fetch(checkpoint: Checkpoint) -> None:
    key = LinkKey(zmq.curve_keypair()[1])
    with pair_of(checkpoint.model_dir, "tcp://127.0.0.1:*", key=key) as pair:
        assert not pair.where.endswith("*")
        computed = pair.compute("first", PROMPT, A)
        assert pair.fetch("again", PROMPT, A) == computed
        assert pair.here.finished("again").reused.fetched == WHOLE * SIZE
        assert list(pair.here.core.stats().exchange.fetched) == ["tcp"]
        pair.expect_nothing_left()
