"""A client that sends bytes to a port in given packets, and returns the answer."""

from __future__ import annotations

import re
import socket
import time

PAUSE_S = 0.01  # seconds between two packets, so that the server does not read both at once
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def statuses(port: int, *packets: bytes, timeout_s: float = 5.0) -> list[int]:
    """Return the statuses of all answers to these packets. Raises TimeoutError."""
    answers = exchange(port, *packets, timeout_s=timeout_s)
    return [int(found) for found in _STATUS.findall(answers)]


def exchange(port: int, *packets: bytes, timeout_s: float = 5.0) -> bytes:
    """Send these packets; return all bytes until the other end closes. Raises TimeoutError."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            connection.sendall(packet)
            time.sleep(PAUSE_S)
        data = b""
        while piece := connection.recv(65536):
            data += piece
    return data
