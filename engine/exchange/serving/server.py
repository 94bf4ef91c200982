"""The server of KV blocks to other engines: its socket, and its thread (`serving_thread.py`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import zmq

from engine.exchange.block_memory import BlockMemory
from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.sending import BlocksToSend
from engine.exchange.serving.serving_thread import ServingThread
from engine.exchange.wire import PoolHandle, window_of
from engine.link import pieces
from engine.link.address import is_tcp
from engine.link.engine_end.binding import bind, make_way
from engine.link.engine_end.waker import Waker
from engine.link.tcp.curve import LinkKey, Socket, only_holders
from engine.link.tcp.strangers import Strangers

GONE_S = 5.0  # seconds of silence after which an asker counts as gone
UNREAD_FRAMES = 32  # maximum number of unread frames of a connection


class BlockServer:
    """The server of KV blocks to other engines, used by the owner thread."""

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
        self._memory = memory
        waker = Waker()
        if is_tcp(where) and key is None:
            raise ValueError(f"{where}: over TCP a key is needed")
        with ExitStack() as opened:
            opened.callback(waker.close)
            context: zmq.Context[Socket] = zmq.Context()
            opened.callback(context.destroy, linger=0)
            if key is not None:
                opened.enter_context(only_holders(context, key))
            socket = _open(context, window_of(memory.block_bytes))
            opened.callback(socket.close, linger=0)
            if key is not None:
                opened.callback(Strangers(socket, where, names_key=False).close)
            self.address = _bind(socket, where, key, opened)
            self._opened = opened.pop_all()
        self._thread = ServingThread(socket, waker, memory, wake_owner, pool=pool, gone_s=gone_s)

    @property
    def sent_blocks(self) -> int:
        """The number of blocks sent so far."""
        return self._thread.sent_blocks

    @property
    def sent_bytes(self) -> int:
        """The bytes of the blocks sent so far."""
        return self._thread.sent_bytes

    def take(self) -> list[Asked | Gone]:
        """Return the events since the last call. Raises ThreadEnded."""
        return self._thread.take()

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        """Announce that the first `blocks` blocks of the prompt are about to be sent.

        With `has_state`, the units of the recurrent state at their end follow.
        """
        self._thread.found(asker, blocks, first_reads, has_state=has_state)

    def units_of_state(self, state_slot: int) -> range:
        """Return the slots of the units that make up a recurrent state."""
        return self._memory.units_of_state(state_slot)

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Send blocks, in order after earlier blocks.

        The blocks stay leased until the asker is `Gone`.
        """
        self._thread.send(asker, blocks)

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Send no more blocks to an asker. `Gone` follows once it has taken all blocks."""
        self._thread.end(asker, why, is_all=is_all)

    def close(self) -> None:
        """End the thread, and close the socket."""
        self._thread.close()
        self._opened.close()


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
