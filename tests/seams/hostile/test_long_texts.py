"""Long texts are tokenised in turn with other tenants' texts, and never on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.doubles.engine.fake_engine import WELCOME, FakeEngine
from tests.doubles.gateway.attacks import Target, ask, long_text
from tests.doubles.gateway.served import MODEL, Served, config_of, serving

HANDBOOK = Path(__file__).parents[3] / "handbook" / "model"
CONTEXT = 131_072
HANG_S = 2.0  # seconds; an earlier version blocked the event loop for longer
FITS = "the support code for Berlin is 4821. " * 7500  # 280,000 characters, 120,000 tokens
CUT_SHORT = FITS * 5  # tokenised only until it is known to be too long
REFUSED = "日本語" * 560_000  # 5 MB, which certainly exceed the context


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    welcome = msgspec.structs.replace(WELCOME, max_model_len=CONTEXT, vocab_size=2048)
    config = config_of(HANDBOOK, tmp_path_factory.mktemp("data"))
    with serving(config, FakeEngine(welcome)) as running:
        yield running


class LoopWatch:
    """A measurement of the longest time for which one task blocked the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest = 0.0
        self._loop = loop
        self._last = 0.0
        self._over = False

    def __enter__(self) -> LoopWatch:
        self._loop.call_soon_threadsafe(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True

    def _begin(self) -> None:
        self._last = time.monotonic()
        self._loop.call_later(0.01, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now
        if not self._over:
            self._loop.call_later(0.01, self._tick)


@pytest.mark.parametrize(
    ("path", "text", "status"),
    [
        ("/tokenize", FITS, b"200"),
        ("/tokenize", CUT_SHORT, b"400"),
        ("/tokenize", REFUSED, b"400"),
        ("/v1/completions", CUT_SHORT, b"400"),
    ],
)
def test_a_neighbour_is_answered_meanwhile(
    served: Served, path: str, text: str, status: bytes
) -> None:
    attacker, victim = (Target(served.port, key, MODEL) for key in (served.key, served.other_key))

    async def attack() -> tuple[list[bytes], int]:
        more = {"return_token_strs": True} if path == "/tokenize" else {}
        texts = [asyncio.create_task(long_text(attacker, path, text, **more)) for _ in range(4)]
        answered = 0
        while not all(one.done() for one in texts):
            await asyncio.wait_for(ask(victim), HANG_S * 5)
            answered += 1
        return await asyncio.gather(*texts), answered

    with LoopWatch(served.loop) as watch:
        lines, answered = asyncio.run(asyncio.wait_for(attack(), 60))
    assert [line[9:12] for line in lines] == [status] * 4
    assert answered > 0
    assert 0 < watch.longest < HANG_S
    assert served.wait_idle()


def test_control_the_watch_sees_a_loop_that_is_held_up(served: Served) -> None:
    with LoopWatch(served.loop) as watch:
        served.loop.call_soon_threadsafe(time.sleep, 0.3)
        time.sleep(0.6)
    assert watch.longest >= 0.25
