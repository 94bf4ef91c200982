"""Another engine may send any messages to any rank, and no engine and no request ends."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import zmq

from engine.exchange.seal import name_of
from engine.exchange.wire import Ask, Ended, ExchangeCodec, Found, Leave, Taken, ToSource
from engine.link.tcp.curve import Socket
from tests.engine.rigs.checkpoints import Checkpoint
from tests.seams.exchange.pair import PROMPT, SIZE, WHOLE, A, B, Pair, pair_of

WORDS = 500
NUMBERS = (0, 1, 2, -1, 3, 11, 12, 2**31 - 1, 2**31, 2**63 - 1, -(2**63))
IDS = np.array(PROMPT[: WHOLE * SIZE], "<i4").tobytes()


class Talker:
    """A client that sends random messages, and reads some of the answers."""

    def __init__(self, context: zmq.Context[Socket], door: str, fingerprint: bytes) -> None:
        self.heard: set[type] = set()
        self._drawn = random.Random(7)
        self._fingerprint = fingerprint
        self._codec = ExchangeCodec()
        self._socket = context.socket(zmq.DEALER)
        self._socket.connect(f"ipc://{door}")

    def say(self) -> None:
        socket = self._socket
        socket.send(self._codec.encode(self._word()))
        while socket.poll(0):
            self.heard.add(type(self._codec.decode_from_source(socket.recv_multipart()[0])))

    def _word(self) -> ToSource:
        number = self._drawn.choice((self._drawn.randrange(50), *NUMBERS))
        kind = self._drawn.random()
        if kind < 0.6:
            return self._ask(number)
        return Taken(number, self._drawn.choice(NUMBERS)) if kind < 0.8 else Leave(number)

    def _ask(self, number: int) -> Ask:
        one, some = self._drawn.choice, self._drawn.choice(NUMBERS)
        a, b = name_of(A), name_of(B)
        return Ask(
            number=number,
            fingerprint=one((*3 * [self._fingerprint], b"", b"x" * 32)),
            salt=one((bytes(16), bytes(16), b"", bytes(17))),
            spans=one((((0, a),), ((0, a), (some, b)), ((0, b""),), (), ((some, a),))),
            token_ids=one((IDS, IDS[:64], 3 * IDS, b"", IDS[:-1], self._drawn.randbytes(640))),
            first=one(NUMBERS),
            window=one(NUMBERS),
            flow=one(("", "flow", "x" * 1000)),
            request_id=one((None, None, "first", "none")),
            host=one((None, b"", b"x" * 16)),
        )


def test_an_engine_goes_on_and_holds_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pair_of(checkpoint.model_dir, str(tmp_path / "x.sock")) as pair:
        computed = pair.compute("first", PROMPT, A)
        context: zmq.Context[Socket] = zmq.Context()
        talker = Talker(context, pair.where, fingerprint_of(pair))
        for number in range(WORDS):
            talker.say()
            if number % 3 == 0:
                pair.there.step()
        context.destroy(linger=0)
        assert {Found, Ended} <= talker.heard, "the control: some of it is an ask"
        assert pair.fetch("again", PROMPT, A) == computed
        pair.expect_nothing_left()


def fingerprint_of(pair: Pair) -> bytes:
    source = pair.there.core.components.exchange._source
    assert source is not None
    return source._fingerprint
