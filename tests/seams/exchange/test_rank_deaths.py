"""A rank of either engine dies or freezes in the middle of a fetch; each is a process here."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.exchange.fetch import Patience
from engine.link.messages import FetchSource
from tests.doubles.forks.process import ForkedProcess
from tests.doubles.processes import children
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.apart import apart
from tests.seams.exchange.pair import BOUNDS, GIVE_UP_S, GREEDY, PROMPT, SIZE, WHOLE, A, leased
from tests.seams.exchange.test_failures import fetched, loading, step_until
from tests.seams.support.real_engine import ExchangeAt, RealEngine

TWO = replace(BOUNDS, ranks=2)
SHORT_S = 1.0  # of silence


def rank_of(process: ForkedProcess) -> int:
    [rank] = children(process.pid)
    return rank


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_of_the_engine_that_answers(checkpoint: Checkpoint, tmp_path: Path, name: str) -> None:
    """What all ranks have by then is kept, and the rest is computed."""
    where, model = str(tmp_path / "x.sock"), str(checkpoint.model_dir)
    asks = ExchangeAt(None, None, Patience(stream=60.0), SHORT_S)
    with (
        closing(RealEngine(model, TWO, exchange=asks)) as engine,
        apart("answering_engine", tmp_path / "log", model, where, "0.1", "2") as process,
    ):
        source = FetchSource(where, len(PROMPT), "first")
        engine.submit("again", PROMPT, GREEDY, namespace=A, source=source)
        step_until(engine, lambda: any(one.num_computed >= 3 * SIZE for one in loading(engine)))
        os.kill(rank_of(process), getattr(signal, name))
        step_until(engine, lambda: engine.core.is_idle)
        assert 3 * SIZE <= engine.finished("again").reused.fetched < WHOLE * SIZE
        assert fetched(engine).failed == 1
        engine.submit("control", PROMPT, GREEDY, namespace=A, use_cache=False)
        engine.run()
        assert engine.tokens("again") == engine.tokens("control")
        engine.expect_nothing_left()


def test_of_the_engine_that_asks(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """It ends, and the other one gives back what it held for it."""
    where, model = str(tmp_path / "x.sock"), str(checkpoint.model_dir)
    bounds = replace(TWO, max_batch_tokens=17)
    with (
        closing(RealEngine(model, bounds, exchange=ExchangeAt(where))) as engine,
        apart("asking_engine", tmp_path / "log", model, where) as process,
    ):
        exchange = engine.core.components.exchange
        step_until(engine, lambda: exchange.is_busy)
        engine.submit("first", PROMPT, GREEDY, namespace=A)
        step_until(engine, lambda: exchange.stats().sent_blocks >= 3)
        assert not engine.core.is_idle, "the control: there is more to come"
        os.kill(rank_of(process), signal.SIGKILL)
        assert process.wait(GIVE_UP_S) != 0
        engine.run()
        step_until(engine, lambda: not leased(engine))
        engine.expect_nothing_left()
