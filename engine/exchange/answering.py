"""The thread that sends blocks to other engines: it has the socket that they ask at.

    owner                                        thread                            asking engine
      take() <- Asked, Gone                        <------------------------------ Ask, Taken, Leave
      found(), send(), end() ->                    reads, seals, sends ----------> Found, Block, ...

It sends no more than the asking engine has room for. One that says nothing for some seconds is
gone, as is one whose connection is.

Knows: sockets, windows, seals. Does not know: which blocks these are, or leases (`source.py`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import zmq

from engine.exchange.block_memory import BlockMemory
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.wire import (
    MAX_FRAME_BYTES,
    SALT_BYTES,
    Ask,
    Block,
    Ended,
    ExchangeCodec,
    Found,
    FromSource,
    Leave,
    PoolHandle,
    Slots,
    Still,
    Taken,
    WireError,
)
from engine.link.address import is_tcp
from engine.link.binding import bind, make_way
from engine.link.curve import LinkKey, Socket, only_holders
from engine.link.waker import Waker

GONE_S = 5.0  # without a word
LOOK_S = 0.5
FRAMES_AT_ONCE = 64


class ThreadEnded(RuntimeError):
    """A thread of the exchange has died: a defect, after which nothing it held is ever released."""


Asker = tuple[bytes, int]
"""A connection, and the number of a fetch on it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Another engine asks."""

    asker: Asker
    ask: Ask


@dataclass(frozen=True, slots=True)
class Gone:
    """Another engine wants no more of it, or is gone: nothing of it is read any more."""

    asker: Asker


@dataclass(frozen=True, slots=True)
class BlockToSend:
    """A block that is leased until its asker is `Gone`."""

    place: SealedPlace
    slot: int


@dataclass(slots=True)
class _Session:
    seal: Seal
    salt: bytes
    window: int
    taken: int
    heard: float
    by_slots: bool = False
    sent: int = 0
    waiting: deque[BlockToSend] = field(default_factory=deque)
    end: Ended | None = None


class Answering:
    """The thread, and the socket that it serves. Opened and used by the owner thread."""

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
        """Bind at `where`: a path, or over TCP `tcp://host:port` or `tcp://host:*` with a key.

        `pool`: what engines on GPUs of this host may copy from. Raises ValueError, OSError.
        """
        self.sent_blocks = self.sent_bytes = 0
        self._memory = memory
        self._pool = pool
        self._wake_owner = wake_owner
        self._gone_s = gone_s
        self._inbox: SimpleQueue[Asked | Gone] = SimpleQueue()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._sessions: dict[Asker, _Session] = {}
        self._codec = ExchangeCodec()
        self._waker = Waker()
        self._is_over = False
        if is_tcp(where) and key is None:
            raise ValueError(f"{where}: over TCP a key is needed")
        with ExitStack() as opened:
            opened.callback(self._waker.close)
            context: zmq.Context[Socket] = zmq.Context()
            opened.callback(context.destroy, linger=0)
            if key is not None:
                opened.enter_context(only_holders(context, key))
            self._socket = _open(context)
            self.address = _bind(self._socket, where, key, opened)
            self._opened = opened.pop_all()
        self._thread = threading.Thread(target=self._run, name="exchange-answers", daemon=True)
        self._thread.start()

    # For the owner

    def take(self) -> list[Asked | Gone]:
        """What has come since the last call."""
        if not self._thread.is_alive():
            raise ThreadEnded("the thread that answers other engines has ended")
        taken = []
        while not self._inbox.empty():
            taken.append(self._inbox.get())
        return taken

    def found(self, asker: Asker, blocks: int, first_reads: dict[str, int]) -> None:
        """Say that the first `blocks` blocks of the prompt are about to be sent."""
        self._order(lambda: self._say_found(asker, blocks, first_reads))

    def send(self, asker: Asker, blocks: list[BlockToSend]) -> None:
        """Send blocks, in order after those before; leased until the asker is `Gone`."""
        self._order(lambda: self._queue(asker, blocks))

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Nothing more will come for it. `Gone` follows once all has been taken."""
        self._order(lambda: self._end(asker, Ended(asker[1], why, is_all)))

    def close(self) -> None:
        """End the thread, and close the socket."""
        self._is_over = True
        self._waker.wake()
        self._thread.join()
        self._socket.close(linger=0)
        self._opened.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._waker.wake()

    # On the thread

    def _run(self) -> None:
        self._reader = self._memory.reader()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fd, zmq.POLLIN)
        while not self._is_over:
            poller.poll(int(LOOK_S * 1000) if self._sessions else None)
            self._waker.clear()
            self._receive()
            while not self._orders.empty():
                self._orders.get()()
            self._drop_silent()

    def _receive(self) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 2:
                self._hear(*frames)
        self._waker.wake()  # there may be more

    def _hear(self, client: bytes, frame: bytes) -> None:
        try:
            message = self._codec.decode_to_source(frame)
        except WireError:
            return  # another version's engine: it hears nothing, and computes
        asker = (client, message.number)
        session = self._sessions.get(asker)
        if isinstance(message, Ask):
            if session is None:
                self._begin(asker, message)
        elif session is not None:
            self._go_on(asker, session, message)

    def _begin(self, asker: Asker, ask: Ask) -> None:
        salt = secrets.token_bytes(SALT_BYTES)
        seal = Seal(ask.fingerprint, ask.salt, salt)
        session = _Session(seal, salt, max(ask.window, 1), ask.first, time.monotonic())
        session.sent, session.by_slots = ask.first, self._pool is not None and ask.host is not None
        self._sessions[asker] = session
        self._tell_owner(Asked(asker, ask))

    def _go_on(self, asker: Asker, session: _Session, message: Taken | Leave) -> None:
        session.heard = time.monotonic()
        if isinstance(message, Leave):
            self._forget(asker)
            return
        session.taken = min(max(session.taken, message.blocks), session.sent)
        self._say(asker, Still(asker[1], session.taken))
        self._pump(asker, session)

    def _say_found(self, asker: Asker, blocks: int, first_reads: dict[str, int]) -> None:
        session = self._sessions.get(asker)
        if session is not None:
            pool = self._pool if session.by_slots else None
            self._say(
                asker,
                Found(
                    number=asker[1],
                    salt=session.salt,
                    blocks=blocks,
                    first_reads=first_reads,
                    pool=pool,
                ),
            )

    def _queue(self, asker: Asker, blocks: list[BlockToSend]) -> None:
        session = self._sessions.get(asker)
        if session is not None:
            session.waiting.extend(blocks)
            self._pump(asker, session)

    def _end(self, asker: Asker, end: Ended) -> None:
        session = self._sessions.get(asker)
        if session is not None:
            session.end = end
            if not end.is_all:
                session.waiting.clear()
            self._pump(asker, session)

    def _pump(self, asker: Asker, session: _Session) -> None:
        """Send what there is room for."""
        while session.waiting and session.sent - session.taken < session.window:
            if session.by_slots:
                room = session.window - (session.sent - session.taken)
                blocks = [session.waiting.popleft() for _ in range(min(room, len(session.waiting)))]
            else:
                blocks = [session.waiting.popleft()]
            if not self._send_blocks(asker, session, blocks):
                return
        if session.end is not None and not session.waiting:
            is_taken = session.taken == session.sent
            if session.end.is_all and not is_taken:
                return  # it is held until all has been taken
            self._say(asker, session.end)
            self._forget(asker)

    def _send_blocks(self, asker: Asker, session: _Session, blocks: list[BlockToSend]) -> bool:
        number, first, payload = asker[1], blocks[0].place.position, None
        message: FromSource
        if session.by_slots:
            slots = b"".join(one.slot.to_bytes(4, "little") for one in blocks)
            seals = b"".join(session.seal.seal_slot(one.place, one.slot) for one in blocks)
            message = Slots(number=number, first=first, slots=slots, seals=seals)
        else:
            message = Block(number, first)
            payload = session.seal.seal(blocks[0].place, self._reader.read(blocks[0].slot))
        session.sent += len(blocks)
        self.sent_blocks += len(blocks)
        self.sent_bytes += len(blocks) * self._memory.block_bytes
        return self._say(asker, message, payload)

    def _say(self, asker: Asker, message: FromSource, payload: bytes | None = None) -> bool:
        frames: list[bytes] = [asker[0], self._codec.encode(message)]
        if payload is not None:
            frames.append(payload)
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=payload is None)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._forget(asker)
            return False
        return True

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for asker, session in list(self._sessions.items()):
            if now - session.heard > self._gone_s:
                self._say(asker, Ended(asker[1], "nothing was heard", is_all=False))
                self._forget(asker)

    def _forget(self, asker: Asker) -> None:
        if self._sessions.pop(asker, None) is not None:
            self._tell_owner(Gone(asker))

    def _tell_owner(self, news: Asked | Gone) -> None:
        self._inbox.put(news)
        self._wake_owner()


def _open(context: zmq.Context[Socket]) -> Socket:
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.SNDHWM, 0)  # windows bound what is under way
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    return socket


def _bind(socket: Socket, where: str, key: LinkKey | None, opened: ExitStack) -> str:
    """Bind; returns the address, whose port is known now."""
    if is_tcp(where):
        bind(socket, where, key)
        port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        return f"{where.rpartition(':')[0]}:{port}"
    path = Path(where)
    make_way(path)
    bind(socket, f"ipc://{path}", None)
    path.chmod(0o600)
    opened.callback(path.unlink, missing_ok=True)
    return where
