"""Connections with one fault each, for the oracles and the fuzzer to find."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import GatewayError
from gateway.http.protocol.connection import BoundedConnection, connection_within
from tests.gateway.http.protocol.exchange import BOUNDS, DIALECTS

_Whole = connection_within(BOUNDS, DIALECTS)


class BelievesTrailers(_Whole):  # type: ignore[valid-type, misc]
    """A connection that counts what comes after the body as part of the head, as uvicorn does."""

    def on_header(self, name: bytes, value: bytes) -> None:
        HttpToolsProtocol.on_header(self, name, value)


class HoldsTheLastByte(_Whole):  # type: ignore[valid-type, misc]
    """A line's end that comes in a packet of its own is kept for later."""

    _held = b""

    def data_received(self, data: bytes) -> None:
        data, self._held = self._held + data, b""
        if data == b"\r\n" or data == b"\n":
            data, self._held = b"", data
        super().data_received(data)


class RefusesSilently(_Whole):  # type: ignore[valid-type, misc]
    """Bytes that are no HTTP are not answered, and the connection stays open."""

    def _refuse(self, error: GatewayError) -> None:
        self._received.clear()


class DropsPipelined(_Whole):  # type: ignore[valid-type, misc]
    """A connection that forgets, with each answer, what had come before the answer."""

    def on_response_complete(self) -> None:
        self._received.clear()
        super().on_response_complete()


class LosesHighBytes(_Whole):  # type: ignore[valid-type, misc]
    """Only ASCII comes through in a body: no seed has anything else in one."""

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
