"""A proxy for TCP connections. A cut connection loses all bytes, and neither end notices."""

from __future__ import annotations

import selectors
import socket
import threading

from tests.doubles.ports import free_port


class CutOff:
    """A forwarder of connections to a loopback port, in a thread of its own."""

    def __init__(self, to_port: int) -> None:
        self.port = free_port()
        self._to_port = to_port
        self._is_cut = False
        self._is_over = threading.Event()
        self._ways: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Let no bytes arrive from now on, without ending any connection."""
        self._is_cut = True

    def mend(self) -> None:
        """Forward new connections again. Cut connections stay cut."""
        self._is_cut = False

    def close(self) -> None:
        """End all connections."""
        self._is_over.set()
        self._thread.join()
        for end in (self._listener, *self._ways):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(0.05):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end is self._listener:
                    self._accept()
                elif self._is_cut:
                    self._selector.unregister(end)  # the connection stays cut for ever
                elif end in self._ways:
                    self._forward(end)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._to_port))
        except OSError:
            near.close()
            return
        self._ways |= {near: far, far: near}
        for end in (near, far):
            self._selector.register(end, selectors.EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        try:
            content = end.recv(1 << 16)
            if content:
                self._ways[end].sendall(content)
                return
        except OSError:
            pass
        for one in (end, self._ways.pop(end)):
            self._ways.pop(one, None)
            if one in self._selector.get_map():
                self._selector.unregister(one)
            one.close()
