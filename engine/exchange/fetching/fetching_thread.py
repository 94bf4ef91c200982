"""The fetching thread, which owns the sockets to other engines and what is on its way from each.

    owner                            thread                                     answering engine
      ask(fetch) ->                    Ask ---------------------------------->
      fetch.arrived                    decrypted into blocks   <---------------  Found, Block, ...
      leave(fetch) ->                  Leave -------------------------------->

Every fetch ends at the latest at its deadline. A fetch ends earlier if all blocks have come, if the
other engine is silent, or if a block fails authentication.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import zmq

from engine.exchange.block_memory import BlockMemory
from engine.exchange.fetching.arriving import Arriving
from engine.exchange.fetching.fetch import LATE, SILENT, Fetch
from engine.exchange.peer_pool import PeerPools
from engine.exchange.seal import name_of
from engine.exchange.wire import (
    MAX_FRAME_BYTES,
    SALT_BYTES,
    Ask,
    ExchangeCodec,
    Leave,
    Taken,
    ToSource,
    WireError,
    window_of,
)
from engine.link.address import address, is_tcp
from engine.link.engine_end.waker import Waker
from engine.link.pieces import in_pieces
from engine.link.tcp.curve import LinkKey, Socket, connect_with

WORD_S = 0.5  # seconds between keep-alive messages to a sending engine, which answers each
UNUSED_S = 30.0  # seconds until an unused connection is closed
LOOK_S = 0.1
FRAMES_AT_ONCE = 32


@dataclass(slots=True)
class _OnTheWay:
    arriving: Arriving
    heard: float
    said: float
    told: int


@dataclass(slots=True)
class _Peer:
    socket: Socket
    used: float
    on_the_way: dict[int, _OnTheWay] = field(default_factory=dict)


class FetchingThread:
    """The fetching thread. Only its public methods may be called by another thread."""

    def __init__(
        self,
        memory: BlockMemory,
        fingerprint: bytes,
        wake_owner: Callable[[], object],
        key: LinkKey | None,
        pools: PeerPools | None,
        *,
        silence_s: float,
    ) -> None:
        """Start the thread. An engine that is silent for `silence_s` seconds counts as dead.

        Raises OSError.
        """
        self._memory = memory
        self._fingerprint = fingerprint
        self._wake_owner = wake_owner
        self._key = key
        self._pools = pools
        self._silence_s = silence_s
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._numbers = itertools.count(1)
        self._peers: dict[str, _Peer] = {}
        self._codec = ExchangeCodec()
        self._is_over = False
        self._waker = Waker()
        try:
            self._context: zmq.Context[Socket] = zmq.Context()
        except zmq.ZMQError as error:
            self._waker.close()
            raise OSError(error.errno, error.strerror) from error
        self._thread = threading.Thread(target=self._run, name="exchange-client", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False if the thread has died of an error."""
        return self._thread.is_alive()

    def ask(self, fetch: Fetch) -> None:
        """Request a fetch's blocks."""
        self._order(partial(self._ask, fetch))

    def leave(self, fetch: Fetch) -> None:
        """Tell the other engine that a fetch is closed."""
        self._order(partial(self._end, fetch, "it was left"))

    def close(self) -> None:
        """End the thread and all fetches."""
        self._is_over = True
        self._waker.wake()
        self._thread.join()
        self._context.destroy(linger=0)
        self._waker.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._waker.wake()

    # The methods below run on the fetching thread.

    def _run(self) -> None:
        self._writer = self._memory.writer()
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fd, zmq.POLLIN)
        while not self._is_over:
            ready = dict(self._poller.poll(int(LOOK_S * 1000) if self._peers else None))
            self._waker.clear()
            while not self._orders.empty():
                self._orders.get()()
            for where, peer in list(self._peers.items()):
                if peer.socket in ready:
                    self._receive(peer)
                self._look_after(where, peer)

    def _ask(self, fetch: Fetch) -> None:
        wanted, now = fetch.wanted, time.monotonic()
        try:
            peer = self._peer(wanted.address)
        except (ValueError, zmq.ZMQError) as error:
            fetch.end(f"it cannot be reached: {error}")
            self._wake_owner()
            return
        number, salt = next(self._numbers), secrets.token_bytes(SALT_BYTES)
        host = None
        self._writer.follow(wanted.after)
        if self._pools is not None:
            self._pools.follow(wanted.after)
            host = self._pools.host_of(wanted.address)
        arriving = Arriving(fetch, self._fingerprint, salt, self._writer, self._pools)
        peer.on_the_way[number] = _OnTheWay(arriving, now, now, fetch.arrived)
        ask = Ask(
            number=number,
            fingerprint=self._fingerprint,
            salt=salt,
            first=wanted.first,
            window=window_of(self._memory.block_bytes),
            host=host,
            spans=tuple((start, name_of(one)) for start, one in wanted.path.spans),
            token_ids=wanted.tokens.astype("<i4", copy=False).tobytes(),
            flow=wanted.flow,
            request_id=wanted.request_id,
        )
        self._say(peer, ask)

    def _peer(self, where: str) -> _Peer:
        peer = self._peers.get(where)
        if peer is None:
            if is_tcp(where) and self._key is None:
                raise ValueError("over TCP a key is needed")
            socket = self._connected(where, address(where).messages)
            peer = self._peers[where] = _Peer(socket, time.monotonic())
            self._poller.register(socket, zmq.POLLIN)
        return peer

    def _connected(self, where: str, endpoint: str) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + self._memory.block_bytes)
        if is_tcp(where) and self._key is not None:
            connect_with(socket, self._key)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close()  # the addresses come from other engines, and some may be invalid
            raise
        return socket

    def _end(self, fetch: Fetch, why: str) -> None:
        fetch.end(why)
        peer = self._peers.get(fetch.wanted.address)
        if peer is not None:
            self._drop_ended(peer)

    def _receive(self, peer: _Peer) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                frames = peer.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                if not self._settle(peer):
                    break
                continue
            self._hear(peer, frames)
        else:
            self._waker.wake()
            while self._settle(peer):
                pass
        now = time.monotonic()
        for number, one in peer.on_the_way.items():
            if one.arriving.taken > one.told and not one.arriving.fetch.is_over:
                self._tell(peer, number, one, now)
        self._drop_ended(peer)
        self._wake_owner()

    def _settle(self, peer: _Peer) -> bool:
        for number, one in peer.on_the_way.items():
            if one.arriving.settle():
                if not one.arriving.fetch.is_over:
                    self._tell(peer, number, one, time.monotonic())
                return True
        return False

    def _hear(self, peer: _Peer, frames: list[zmq.Frame]) -> None:
        try:
            message = self._codec.decode_from_source(frames[0].buffer)
        except WireError:
            return  # the other engine has another version, so the fetch will time out
        one = peer.on_the_way.get(message.number)
        if one is None:
            return
        one.heard = time.monotonic()
        fetch = one.arriving.fetch
        fetch.answered = fetch.answered or one.heard
        if not fetch.is_over:
            one.arriving.take(message, frames[1].buffer if len(frames) == 2 else None)

    def _look_after(self, where: str, peer: _Peer) -> None:
        now, is_silent = time.monotonic(), False
        for number, one in peer.on_the_way.items():
            if now - one.heard > self._silence_s:
                one.arriving.fetch.end(SILENT)
                is_silent = True
            elif now > one.arriving.fetch.wanted.deadline:
                one.arriving.fetch.end(LATE)
            elif now - one.said > WORD_S:
                self._tell(peer, number, one, now)
        if self._drop_ended(peer):
            self._wake_owner()
        if peer.on_the_way:
            peer.used = now
        elif is_silent or now - peer.used > UNUSED_S:
            self._poller.unregister(peer.socket)
            peer.socket.close(linger=0)
            del self._peers[where]

    def _drop_ended(self, peer: _Peer) -> bool:
        ended = [n for n, one in peer.on_the_way.items() if one.arriving.fetch.is_over]
        for number in ended:
            del peer.on_the_way[number]
            self._say(peer, Leave(number))
        return bool(ended)

    def _tell(self, peer: _Peer, number: int, one: _OnTheWay, now: float) -> None:
        one.told, one.said = one.arriving.taken, now
        self._say(peer, Taken(number, one.arriving.taken))

    def _say(self, peer: _Peer, message: ToSource) -> None:
        with suppress(zmq.Again):
            peer.socket.send_multipart(in_pieces(self._codec.encode(message)), zmq.NOBLOCK)
