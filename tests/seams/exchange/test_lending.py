"""An engine serves on while another engine reads its blocks, which are free again at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import zmq

from engine.exchange.seal import name_of
from engine.exchange.wire import Ask, ExchangeCodec, Leave
from engine.link.tcp.curve import Socket
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import BOUNDS, GREEDY, PROMPT, SIZE, WHOLE, A, B
from tests.seams.support.real_engine import ExchangeAt, RealEngine

WAIT_S = 60.0
CODEC = ExchangeCodec()


def test_a_request_waits_for_blocks_that_are_lent(checkpoint: Checkpoint, tmp_path: Path) -> None:
    where = str(tmp_path / "x.sock")
    small = replace(BOUNDS, num_blocks=WHOLE + 3)
    engine = RealEngine(str(checkpoint.model_dir), small, exchange=ExchangeAt(where))
    engine.submit("first", PROMPT, GREEDY, namespace=A)
    engine.run()
    with zmq.Context[Socket]() as context, context.socket(zmq.DEALER) as asker:
        asker.set(zmq.LINGER, 0)
        asker.connect(f"ipc://{where}")
        asker.send(CODEC.encode(ask(engine)))
        give_up = time.monotonic() + WAIT_S
        while not engine.cache.capacity.pool().leased:
            assert time.monotonic() < give_up
            engine.step()
        engine.submit("second", PROMPT, GREEDY, namespace=B)
        for _ in range(20):  # the request cannot start, as intended
            engine.step()
        assert not engine.core.is_idle
        assert not engine.core.components.scheduler.running
        asker.send(CODEC.encode(Leave(1)))
        engine.run()
    assert engine.tokens("second") == engine.tokens("first")
    engine.expect_nothing_left()
    engine.close()


def ask(engine: RealEngine) -> Ask:
    """Make the request of an engine that asks for blocks and never reads."""
    return Ask(
        number=1,
        fingerprint=engine.core.components.welcome.fingerprint,
        salt=bytes(16),
        spans=((0, name_of(A)),),
        token_ids=np.array(PROMPT[: WHOLE * SIZE], "<i4").tobytes(),
        first=0,
        window=1,
        flow=A.hex(),
    )
