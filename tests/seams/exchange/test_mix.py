"""Two engines that fetch from each other, in small pools, give the same tokens as one engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.exchange.fetching.fetch import Patience
from engine.link.messages import Cancel, FetchSource, Loads
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.support.mix import COMMON, Alone, Ask, asks
from tests.seams.support.real_engine import CLIENT, Bounds, ExchangeAt, RealEngine

BOUNDS = Bounds(num_blocks=10, block_size=16, max_batch_tokens=24, max_running=3, host_blocks=6)
TURNS = 400
LATER = 8  # delay of a repeated request, in turns
BEGIN_TOKENS = 51  # length of the common beginning: three blocks and a part


@dataclass(frozen=True)
class Longer(Ask):
    """A prompt that shares some blocks with others of its kind."""

    kind: int

    @property
    def prompt(self) -> tuple[int, ...]:
        begin = tuple((5 * i * i + i * self.kind) % 40 + 5 for i in range(BEGIN_TOKENS))
        return begin + COMMON[: self.shared] + self.private


@dataclass(frozen=True)
class Asked:
    """One request: its engine, if it fetches from the other engine, and if it is cancelled."""

    ask: Longer
    to: int
    source: bool
    streams_from: int | None  # number of the request whose prompt the source engine computes
    only: bool
    loads: Loads
    cancel_at: int | None


def again(one: Asked) -> Asked:
    """Repeat the request on the other engine later, when it can fetch the first one's blocks."""
    later = replace(one.ask, at_step=one.ask.at_step + LATER)
    return replace(
        one, ask=later, to=1 - one.to, source=True, streams_from=None, only=False, loads="always"
    )


mixed = st.builds(
    Asked,
    ask=st.builds(lambda ask, kind: Longer(**vars(ask), kind=kind), asks, st.integers(0, 7)),
    to=st.integers(0, 1),
    source=st.integers(0, 3).map(bool),
    streams_from=st.none() | st.integers(0, 3),
    only=st.integers(0, 5).map(lambda number: number == 0),
    loads=st.sampled_from(["always", "always", "auto"]),
    cancel_at=st.none() | st.none() | st.integers(0, 12),
)


@pytest.fixture(scope="module")
def both(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealEngine]]:
    directory, patience = tmp_path_factory.mktemp("mix"), Patience(least=5.0, unmeasured=5.0)
    engines = [
        RealEngine(
            str(checkpoint.model_dir),
            BOUNDS,
            exchange=ExchangeAt(str(Path(directory, f"{name}.x")), None, patience),
        )
        for name in "ab"
    ]
    yield engines
    for engine in engines:
        engine.close()


def source_of(engines: list[RealEngine], one: Asked) -> FetchSource | None:
    exchange = engines[1 - one.to].exchange
    if not (one.source or one.only) or exchange is None or exchange.address is None:
        return None
    streams_from = None if one.streams_from is None else str(one.streams_from)
    return FetchSource(exchange.address, len(one.ask.prompt), streams_from, one.only)


def run(engines: list[RealEngine], mix: list[Asked]) -> None:
    for turn in range(TURNS):
        for number, one in enumerate(mix):
            if one.ask.at_step == turn:
                engines[one.to].submit(
                    str(number),
                    one.ask.prompt,
                    one.ask.sampling,
                    namespace=one.ask.namespace,
                    loads=one.loads,
                    source=source_of(engines, one),
                )
            if one.cancel_at is not None and one.ask.at_step + one.cancel_at == turn:
                engines[one.to].link.say(Cancel(str(number)), CLIENT)
        for engine in engines:
            engine.step()
        if turn > max(one.ask.at_step for one in mix) and all(e.core.is_idle for e in engines):
            return
    # all fetches end within their time limits
    while not all(engine.core.is_idle for engine in engines):
        for engine in engines:
            engine.step()


def test_any_mix_gives_the_tokens_of_each_alone(both: list[RealEngine], alone: Alone) -> None:
    @settings(max_examples=9, derandomize=True, deadline=None)
    @given(mix=st.lists(mixed, min_size=2, max_size=5))
    def any_mix(mix: list[Asked]) -> None:
        mix = [*mix, *map(again, mix)]
        run(both, mix)
        for number, one in enumerate(mix):
            expect_told(both[one.to], str(number), one, alone(one.ask))
        release_all(both)

    any_mix()
    for engine in both:  # positive control: both engines did fetch
        fetched = engine.core.stats().exchange.fetched["socket"]
        assert fetched.blocks > 10
        assert fetched.fetches > fetched.failed
        engine.expect_nothing_left()


def expect_told(engine: RealEngine, request: str, one: Asked, expected: list[int]) -> None:
    """Check a request's tokens: all, only the first if cancelled, or none if it only prefills."""
    tokens, last = engine.tokens(request), engine.finished(request)
    assert tokens == expected[: len(tokens)]
    if last.reason == "length" and not one.only:
        assert tokens == expected
    if one.only:
        assert not tokens


def release_all(engines: list[RealEngine]) -> None:
    """Wait until both engines know that the other is done; keep their caches."""
    while any(engine.core.components.exchange.is_busy or leased(engine) for engine in engines):
        for engine in engines:
            engine.step()
    for engine in engines:
        engine.link.sent.clear()


def leased(engine: RealEngine) -> int:
    return engine.cache.capacity.pool().leased
