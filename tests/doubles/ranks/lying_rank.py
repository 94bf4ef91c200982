"""A rank that sends what are not its slices of what it was asked for, or a reason of any length."""

from __future__ import annotations

import threading
from pathlib import Path

import zmq

from engine.exchange.wire import Ask, Block, Ended, ExchangeCodec, Found
from engine.link.tcp.curve import Socket
from engine.link.waker import Waker


class LyingRank:
    """Answers every ask with noise of the right size in place of a block. Noted in `asks`.

    With `why` it refuses each for this reason instead.
    """

    def __init__(self, path: Path, block_bytes: int, why: str | None = None) -> None:
        self.address = str(path)
        self._why = why
        self.asks: list[Ask] = []
        self._payload = bytes(block_bytes + 16)
        self._over = Waker()
        self._context = zmq.Context[Socket]()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.wake()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.destroy(linger=0)
        self._over.close()

    def _run(self) -> None:
        codec, poller = ExchangeCodec(), zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._over.fd, zmq.POLLIN)
        while self._over.fd not in dict(poller.poll()):
            client, frame = self._socket.recv_multipart()
            ask = codec.decode_to_source(frame)
            if not isinstance(ask, Ask):
                continue
            self.asks.append(ask)
            if self._why is not None:
                end = Ended(ask.number, self._why, is_all=False)
                self._socket.send_multipart([client, codec.encode(end)])
                continue
            found = Found(number=ask.number, salt=bytes(16), blocks=1)
            self._socket.send_multipart([client, codec.encode(found)])
            block = codec.encode(Block(ask.number, ask.first))
            self._socket.send_multipart([client, block, self._payload])
