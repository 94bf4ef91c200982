"""The server of KV blocks to other engines. Its thread owns the socket.

    owner                                        thread                            asking engine
      take() <- Asked, Gone                        <------------------------------ Ask, Taken, Leave
      found(), send(), end() ->                    reads, seals, sends ----------> Found, Block, ...

The server never sends more blocks than the asking engine has room for. An asker that is silent for
some seconds, or whose connection has ended, counts as gone.

Elsewhere: how many blocks may be on their way (`sending.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import zmq

from engine.exchange.block_memory import BlockMemory
from engine.exchange.errors import ThreadEnded
from engine.exchange.peer_pool import this_host
from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.listening import Listening
from engine.exchange.serving.sending import BlocksToSend, Sending
from engine.exchange.wire import (
    Ask,
    Ended,
    ExchangeCodec,
    FromSource,
    Leave,
    PoolHandle,
    Still,
    Taken,
    WireError,
    window_of,
)
from engine.link.tcp.curve import LinkKey

GONE_S = 5.0  # seconds of silence after which an asker counts as gone
LOOK_S = 0.5
FRAMES_AT_ONCE = 64
MOST_ASKS = 128
BUSY = "it sends to many already"


class BlockServer:
    """The server of KV blocks, and its thread. The owner thread uses only the public members."""

    def __init__(
        self,
        where: str,
        memory: BlockMemory,
        wake_owner: Callable[[], object],
        *,
        key: LinkKey | None = None,
        pool: PoolHandle | None = None,
        gone_s: float = GONE_S,
    ) -> None:
        """Listen at `where` (`Listening.at`) and start the thread.

        Engines on this host's GPUs may copy from `pool`. Raises ValueError, OSError.
        """
        self.sent_blocks = self.sent_bytes = 0
        self._window = window_of(memory.block_bytes)
        self._listening = Listening.at(where, key, self._window)
        self._socket, self._waker = self._listening.socket, self._listening.waker
        self.address = self._listening.address
        self._memory = memory
        self._wake_owner = wake_owner
        self._pool = pool
        self._host = None if pool is None else this_host()
        self._gone_s = gone_s
        self._inbox: SimpleQueue[Asked | Gone] = SimpleQueue()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._sendings: dict[Asker, Sending] = {}
        self._codec = ExchangeCodec()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="exchange-server", daemon=True)
        self._thread.start()

    def take(self) -> list[Asked | Gone]:
        """Return the events since the last call. Raises ThreadEnded."""
        if not self._thread.is_alive():
            raise ThreadEnded("the thread that answers other engines has ended")
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        """Announce that the first `blocks` blocks of the prompt are about to be sent.

        With `has_state`, the units of the recurrent state at their end follow.
        """
        self._order(partial(self._say_found, asker, blocks, first_reads, has_state=has_state))

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self._memory.units_of_state(state_slot)

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Send blocks, in order after earlier blocks.

        The blocks stay leased until the asker is `Gone`.
        """
        self._order(partial(self._add, asker, blocks))

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Send no more blocks to an asker. `Gone` follows once it has taken all blocks."""
        self._order(partial(self._stop, asker, Ended(asker[1], why, is_all)))

    def close(self) -> None:
        """End the thread, and close the socket."""
        self._is_over = True
        self._waker.wake()
        self._thread.join()
        self._listening.opened.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._waker.wake()

    # The methods below run on the serving thread.

    def _run(self) -> None:
        self._reader = self._memory.reader()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fd, zmq.POLLIN)
        while not self._is_over:
            poller.poll(int(LOOK_S * 1000) if self._sendings else None)
            self._waker.clear()
            self._receive()
            while not self._orders.empty():
                self._orders.get()()
            self._drop_silent()

    def _receive(self) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                client, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._hear(client, b"".join(parts))
        self._waker.wake()

    def _hear(self, client: bytes, frame: bytes) -> None:
        try:
            message = self._codec.decode_to_source(frame)
        except WireError:
            return  # the asker has another version, so it will compute the blocks itself
        asker = (client, message.number)
        sending = self._sendings.get(asker)
        if isinstance(message, Ask):
            if sending is None:
                self._begin(asker, message)
        elif sending is not None:
            self._go_on(asker, sending, message)

    def _begin(self, asker: Asker, ask: Ask) -> None:
        if len(self._sendings) >= MOST_ASKS or self._inbox.qsize() >= 2 * MOST_ASKS:
            self._say(asker, Ended(asker[1], BUSY, is_all=False))
            return
        is_neighbour = ask.host is not None and ask.host == self._host
        pool = self._pool if is_neighbour else None
        self._sendings[asker] = Sending(ask, time.monotonic(), pool, window=self._window)
        self._tell_owner(Asked(asker, ask))

    def _go_on(self, asker: Asker, sending: Sending, message: Taken | Leave) -> None:
        sending.heard = time.monotonic()
        if isinstance(message, Leave):
            self._forget(asker)
            return
        self._say(asker, Still(asker[1], sending.take(message.blocks)))
        self._pump(asker, sending)

    def _say_found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool
    ) -> None:
        sending = self._sendings.get(asker)
        if sending is None:
            return
        units = len(self._memory.units_of_state(0)) if has_state else 0
        if not self._say(asker, sending.found(blocks, first_reads, units)):
            self._forget(asker)  # without `Found` the asker has no salt, and can decrypt no block

    def _add(self, asker: Asker, blocks: BlocksToSend) -> None:
        sending = self._sendings.get(asker)
        if sending is not None:
            sending.add(blocks)
            self._pump(asker, sending)

    def _stop(self, asker: Asker, end: Ended) -> None:
        sending = self._sendings.get(asker)
        if sending is not None:
            sending.stop(end)
            self._pump(asker, sending)

    def _pump(self, asker: Asker, sending: Sending) -> None:
        while (one := sending.next(self._reader)) is not None:
            message, payload, blocks = one
            if not self._say(asker, message, payload):
                return
            sending.done(blocks)
            self.sent_blocks += blocks
            self.sent_bytes += blocks * self._memory.block_bytes
        if sending.is_over and sending.end is not None:
            is_told = self._say(asker, sending.end)
            if is_told or not sending.end.is_all:
                self._forget(asker)

    def _say(self, asker: Asker, message: FromSource, payload: bytearray | None = None) -> bool:
        frames: list[bytes | bytearray] = [asker[0], self._codec.encode(message)]
        if payload is not None:
            frames.append(payload)
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=payload is None)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            if error.errno == zmq.EHOSTUNREACH:
                self._forget(asker)
            return False
        return True

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for asker, sending in list(self._sendings.items()):
            if now - sending.heard > self._gone_s:
                self._say(asker, Ended(asker[1], "nothing was heard", is_all=False))
                self._forget(asker)

    def _forget(self, asker: Asker) -> None:
        if self._sendings.pop(asker, None) is not None:
            self._tell_owner(Gone(asker))

    def _tell_owner(self, news: Asked | Gone) -> None:
        self._inbox.put(news)
        self._wake_owner()
