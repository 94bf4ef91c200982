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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import zmq

from engine.exchange.block_memory import BlockMemory
from engine.exchange.peer_pool import this_host
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
from engine.link import pieces
from engine.link.address import is_tcp
from engine.link.engine_end.binding import bind, make_way
from engine.link.engine_end.waker import Waker
from engine.link.tcp.curve import LinkKey, Socket, only_holders
from engine.link.tcp.strangers import Strangers

GONE_S = 5.0  # seconds of silence after which an asker counts as gone
LOOK_S = 0.5
FRAMES_AT_ONCE = 64
MOST_ASKS = 128
UNREAD_FRAMES = 32  # maximum number of unread frames of a connection
BUSY = "it sends to many already"


class ThreadEnded(RuntimeError):
    """An error of the engine: a thread of the exchange died, so its leases would never end."""


Asker = tuple[bytes, int]
"""A connection, and the number of a fetch on it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An event: another engine asks for blocks."""

    asker: Asker
    ask: Ask


@dataclass(frozen=True, slots=True)
class Gone:
    """An event: an asker has left or is silent, and no longer reads its blocks."""

    asker: Asker


class BlockServer:
    """The serving thread and its socket. The owner thread opens and uses this object."""

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
        """Bind at `where`, a path or `tcp://host:port` or `tcp://host:*`.

        TCP needs a key.

        Engines on this host's GPUs may copy from `pool`. Raises ValueError, OSError.
        """
        self.sent_blocks = self.sent_bytes = 0
        self._memory = memory
        self._pool = pool
        self._host = None if pool is None else this_host()
        self._wake_owner = wake_owner
        self._gone_s = gone_s
        self._inbox: SimpleQueue[Asked | Gone] = SimpleQueue()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._sendings: dict[Asker, Sending] = {}
        self._codec = ExchangeCodec()
        self._waker = Waker()
        self._window = window_of(memory.block_bytes)
        self._is_over = False
        if is_tcp(where) and key is None:
            raise ValueError(f"{where}: over TCP a key is needed")
        with ExitStack() as opened:
            opened.callback(self._waker.close)
            context: zmq.Context[Socket] = zmq.Context()
            opened.callback(context.destroy, linger=0)
            if key is not None:
                opened.enter_context(only_holders(context, key))
            self._socket = _open(context, self._window)
            opened.callback(self._socket.close, linger=0)
            if key is not None:
                opened.callback(Strangers(self._socket, where, names_key=False).close)
            self.address = _bind(self._socket, where, key, opened)
            self._opened = opened.pop_all()
        self._thread = threading.Thread(target=self._run, name="exchange-server", daemon=True)
        self._thread.start()

    def take(self) -> list[Asked | Gone]:
        """Return the events since the last call."""
        if not self._thread.is_alive():
            raise ThreadEnded("the thread that answers other engines has ended")
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        """Announce that the first `blocks` blocks of the prompt are about to be sent.

        With `has_state`, the units of the recurrent state at their end follow.
        """
        self._order(lambda: self._say_found(asker, blocks, first_reads, has_state=has_state))

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self._memory.units_of_state(state_slot)

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Send blocks, in order after earlier blocks.

        The blocks stay leased until the asker is `Gone`.
        """
        self._order(lambda: self._add(asker, blocks))

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Send no more blocks to an asker. `Gone` follows once it has taken all blocks."""
        self._order(lambda: self._stop(asker, Ended(asker[1], why, is_all)))

    def close(self) -> None:
        """End the thread, and close the socket."""
        self._is_over = True
        self._waker.wake()
        self._thread.join()
        self._opened.close()

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


def _open(context: zmq.Context[Socket], window: int) -> Socket:
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    # An asker that never reads could leave and ask again repeatedly, so its window is not a bound.
    socket.set(zmq.SNDHWM, 2 * window + UNREAD_FRAMES)
    socket.set(zmq.RCVHWM, UNREAD_FRAMES)
    socket.set(zmq.MAXMSGSIZE, pieces.MAX_FRAME_BYTES)
    return socket


def _bind(socket: Socket, where: str, key: LinkKey | None, opened: ExitStack) -> str:
    if is_tcp(where):
        bind(socket, where, key, "exchange")
        port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        return f"{where.rpartition(':')[0]}:{port}"
    path = Path(where)
    make_way(path)
    bind(socket, f"ipc://{path}", None, "exchange")
    path.chmod(0o600)
    opened.callback(path.unlink, missing_ok=True)
    return where
