"""If a fetch fails in any way, the request gets the same tokens as without a fetch."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from engine.exchange.fetching.fetch import Patience
from engine.link.messages import Cancel, FetchSource
from engine.link.stats.engine_stats import FetchStats
from engine.link.tcp.curve import LinkKey
from engine.sequences.sequence import Sequence
from tests.doubles.forks.process import ForkedProcess
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.apart import apart
from tests.seams.exchange.pair import (
    BOUNDS,
    GREEDY,
    PATIENT,
    PROMPT,
    SIZE,
    WHOLE,
    A,
    Pair,
    pair_of,
)
from tests.seams.support.real_engine import CLIENT, ExchangeAt, RealEngine

HASTY = Patience(least=0.5, unmeasured=0.5, stream=0.5)
SHORT_S = 1.0  # time limit for silence, in seconds
FROZEN_S = 3.0  # seconds in which a process sends a block, even on a busy machine
FEW = 24  # limit on open files, lower than the number that this process has open


@pytest.fixture(scope="module")
def computed(checkpoint: Checkpoint) -> list[int]:
    """Return the prompt's tokens from an engine that fetches nothing."""
    engine = RealEngine(str(checkpoint.model_dir), BOUNDS)
    engine.submit("alone", PROMPT, GREEDY, namespace=A)
    engine.run()
    engine.close()
    return engine.tokens("alone")


@pytest.fixture
def pair(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Pair]:
    where = str(tmp_path / "x.sock")
    with pair_of(checkpoint.model_dir, where, patience=PATIENT, silence_s=SHORT_S) as pair:
        yield pair
        pair.expect_nothing_left()


def reused(pair: Pair, name: str = "again") -> int:
    return pair.here.finished(name).reused.fetched


def test_nobody_is_there_and_for_a_while_nobody_is_asked(pair: Pair, computed: list[int]) -> None:
    nowhere = FetchSource("/nowhere/x.sock", len(PROMPT))
    assert pair.fetch("again", PROMPT, A, nowhere) == computed
    assert (reused(pair), pair.fetched().failed) == (0, 1)
    pair.here.cache.flush()
    assert pair.fetch("third", PROMPT, A, nowhere) == computed
    assert pair.fetched().fetches == 1, "it was asked again at once"
    pair.here.cache.flush()
    pair.compute("first", PROMPT, A)
    # positive control: a fetch from an engine that answers
    assert pair.fetch("fourth", PROMPT, A) == computed
    assert reused(pair, "fourth") == WHOLE * SIZE


@pytest.mark.parametrize("where", ["", "tcp://127.0.0.1:1", "tcp://none", "tcp://127.0.0.1:99999"])
def test_an_address_that_is_none_or_needs_a_key(
    pair: Pair, computed: list[int], where: str
) -> None:
    assert pair.fetch("again", PROMPT, A, FetchSource(where, len(PROMPT))) == computed
    assert (reused(pair), pair.fetched().failed) == (0, 1)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Open files until this process may open no more, as a flood of connections would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    held = list[int]()
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_descriptor_is_to_be_had_the_prompt_is_computed(
    pair: Pair, computed: list[int]
) -> None:
    """The engine has not fetched before, so it opens its socket only now."""
    pair.compute("first", PROMPT, A)
    with no_descriptors():
        assert pair.fetch("again", PROMPT, A) == computed
    assert (reused(pair), pair.here.core.stats().exchange.refused) == (0, 1)
    pair.here.cache.flush()
    assert pair.fetch("third", PROMPT, A) == computed  # positive control: it fetches
    assert reused(pair, "third") == WHOLE * SIZE


def test_the_hint_was_wrong_or_half_of_it_was_evicted(pair: Pair, computed: list[int]) -> None:
    assert pair.fetch("none", PROMPT, A) == computed
    assert reused(pair, "none") == 0
    pair.here.cache.flush()
    pair.compute("half", PROMPT[: 5 * SIZE + 3], A)
    assert pair.fetch("again", PROMPT, A) == computed
    assert reused(pair) == 5 * SIZE


def test_another_fingerprint_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, computed: list[int]
) -> None:
    other = replace(BOUNDS, block_size=32, num_blocks=24)
    where = str(tmp_path / "x.sock")
    with pair_of(checkpoint.model_dir, where, there=other) as pair:
        pair.compute("first", PROMPT, A)
        assert pair.fetch("again", PROMPT, A) == computed
        assert (reused(pair), pair.fetched().failed) == (0, 1)


def test_without_the_key_nobody_is_heard(checkpoint: Checkpoint, computed: list[int]) -> None:
    """A fetch without the key times out. A fetch with the key succeeds (`test_fetched`)."""
    key, strangers = (LinkKey(zmq.curve_keypair()[1]) for _ in range(2))
    with pair_of(checkpoint.model_dir, "tcp://127.0.0.1:*", key=key) as pair:
        pair.compute("first", PROMPT, A)
        asks = ExchangeAt(None, strangers, HASTY, SHORT_S)
        stranger = RealEngine(str(checkpoint.model_dir), BOUNDS, exchange=asks)
        try:
            strange = Pair(pair.there, stranger, pair.where)
            assert strange.fetch("again", PROMPT, A) == computed
            assert (reused(strange), strange.fetched().failed) == (0, 1)
        finally:
            stranger.close()


def test_an_engine_whose_steps_stand_is_waited_for_within_bounds(
    checkpoint: Checkpoint, tmp_path: Path, computed: list[int]
) -> None:
    """The engine's exchange thread answers, but no step runs, so no block comes."""
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock"), patience=HASTY) as pair:
        pair.compute("first", PROMPT, A)
        pair.here.submit("again", PROMPT, GREEDY, namespace=A, source=pair.source(), loads="always")
        pair.until(lambda: pair.here.core.is_idle, is_stepped=False)
        assert pair.here.tokens("again") == computed
        assert (reused(pair), pair.fetched().failed) == (0, 1)
        pair.expect_nothing_left()


def test_a_request_that_is_cancelled_gives_its_blocks_back_at_once(pair: Pair) -> None:
    pair.compute("first", PROMPT, A)
    pair.here.submit("again", PROMPT, GREEDY, namespace=A, source=pair.source(), loads="always")
    pair.here.step()
    assert not pair.here.core.is_idle
    pair.here.link.say(Cancel("again"), CLIENT)
    pair.here.step()
    assert pair.here.core.is_idle
    assert pair.here.cache.capacity.pool().leased == 0
    assert pair.here.finished("again").reason == "cancelled"


def slow_engine(
    checkpoint: Checkpoint, where: str, log: Path
) -> AbstractContextManager[ForkedProcess]:
    """Run an engine that computes one block of the prompt every tenth of a second."""
    return apart("answering_engine", log, str(checkpoint.model_dir), where, "0.1")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_an_engine_that_dies_or_freezes_half_way(
    checkpoint: Checkpoint, tmp_path: Path, computed: list[int], name: str
) -> None:
    """The blocks that have arrived are kept, and the rest is computed."""
    where = str(tmp_path / "x.sock")
    asks = ExchangeAt(None, None, Patience(stream=60.0), FROZEN_S)
    engine = RealEngine(str(checkpoint.model_dir), BOUNDS, exchange=asks)
    with slow_engine(checkpoint, where, tmp_path / "log") as process:
        source = FetchSource(where, len(PROMPT), "first")
        engine.submit("again", PROMPT, GREEDY, namespace=A, source=source)
        step_until(engine, lambda: any(one.num_computed >= 3 * SIZE for one in loading(engine)))
        os.kill(process.pid, getattr(signal, name))
        step_until(engine, lambda: engine.core.is_idle)
    assert engine.tokens("again") == computed
    assert 3 * SIZE <= engine.finished("again").reused.fetched < WHOLE * SIZE
    assert fetched(engine).failed == 1
    engine.expect_nothing_left()
    engine.close()


def loading(engine: RealEngine) -> list[Sequence]:
    return engine.core.components.scheduler.loading


def fetched(engine: RealEngine) -> FetchStats:
    return engine.core.stats().exchange.fetched["socket"]


def step_until(engine: RealEngine, is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60.0
    engine.step()
    while not is_so():
        assert time.monotonic() < give_up, "it goes on for ever"
        engine.step()
