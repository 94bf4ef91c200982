"""Connections with one fault each, which the oracles and the fuzzer must detect."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import GatewayError
from gateway.http.protocol.connection import BoundedConnection, connection_within
from tests.gateway.http.protocol.exchange import BOUNDS, DIALECTS

_Whole = connection_within(BOUNDS, DIALECTS)


class BelievesTrailers(_Whole):  # type: ignore[valid-type, misc]
    """A connection that counts trailers as part of the head, as uvicorn does."""

    def on_header(self, name: bytes, value: bytes) -> None:
        HttpToolsProtocol.on_header(self, name, value)


class HoldsTheLastByte(_Whole):  # type: ignore[valid-type, misc]
    """A connection that withholds the end of a line if that end arrives in its own packet."""

    _held = b""

    def data_received(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if data == b"\r\n" or data == b"\n":
            data, self._held = b"", data
        super().data_received(data)


class RefusesSilently(_Whole):  # type: ignore[valid-type, misc]
    """A connection that does not answer bytes that are not HTTP, and stays open."""

    def _refuse(self, error: GatewayError) -> None:
        self._received.clear()


class DropsPipelined(_Whole):  # type: ignore[valid-type, misc]
    """A connection that forgets pipelined bytes with each answer."""

    def on_response_complete(self) -> None:
        self._received.clear()
        super().on_response_complete()


class LosesHighBytes(_Whole):  # type: ignore[valid-type, misc]
    """A connection that passes only ASCII bytes in bodies; no seed has other bytes in a body."""

    def on_body(self, body: bytes) -> None:
        super().on_body(bytes(byte if byte < 128 else 63 for byte in body))


PLANTED: dict[str, type[BoundedConnection]] = {
    kind.__name__: kind
    for kind in (
        BelievesTrailers,
        HoldsTheLastByte,
        RefusesSilently,
        DropsPipelined,
        LosesHighBytes,
    )
}
