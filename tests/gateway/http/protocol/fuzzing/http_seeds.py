"""The fuzzer's seeds: valid requests, and requests that once caused faults."""

from __future__ import annotations

_CHUNKED = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
_GET = b"GET /x?a=b HTTP/1.1\r\nhost: x\r\n\r\n"
_POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
_OFFER = b"connection: Upgrade\r\nUpgrade: h2c\r\n"

SEEDS = {
    "get": _GET,
    "post": _POST,
    "chunked": _CHUNKED + b"2\r\nhi\r\n3;a=b\r\nyou\r\n0\r\n\r\n",
    "pipelined": _GET + _POST + _CHUNKED + b"1\r\na\r\n0\r\n\r\n" + _GET,
    "flood": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 40,
    "trailers": _CHUNKED + b"2\r\n{}\r\n0\r\nx-api-key: k\r\n\r\n" + _GET,
    "many trailers": _CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 600 + b"\r\n",
    "a long trailer": _CHUNKED + b"2\r\n{}\r\n0\r\na: " + b"b" * 3000 + b"\r\n\r\n",
    "an extension": _CHUNKED + b"2;" + b"x" * 3000 + b"\r\nhi\r\n0\r\n\r\n",
    "small chunks": _CHUNKED + b"1\r\na\r\n" * 300 + b"0\r\n\r\n",
    "a blank body": _CHUNKED + b"8\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n" + _GET,
    "upgrade": b"POST /x HTTP/1.1\r\nhost: x\r\n" + _OFFER + b"content-length: 2\r\n\r\nhi" + _GET,
    "second upgrade": _POST + b"POST /x HTTP/1.1\r\n" + _OFFER + b"host: x\r\n"
    b"content-length: 2\r\n\r\nhi",
    "connect": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + _GET,
    "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "early": b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi" + _GET,
    "early chunked": _CHUNKED.replace(b"/x", b"/early") + b"2\r\nhi\r\n0\r\n\r\n" + _GET,
    "continue": _POST.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"),
    "old": b"GET / HTTP/1.0\r\n\r\n",
    "close": _GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + _GET,
    "empty lines": b"\r\n\r\n" + _GET + b"\r\n" + _GET,
    "both": _POST.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
    "bare": b"GET / HTTP/1.1\nhost: x\n\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "cookie": _GET.replace(b"host", b"cookie: a=b\r\nhost"),
    "long head": _GET[:-2] + b"a: " + b"b" * 3000 + b"\r\n\r\n",
    "head": b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n" + _GET,
}  # fmt: skip

WORDS = (
    "GET ", "POST ", " HTTP/1.1\\x0d\\x0a", " HTTP/1.0\\x0d\\x0a", "CONNECT ", "HEAD ", "/early",
    "host: x\\x0d\\x0a", "content-length: 1\\x0d\\x0a", "transfer-encoding: chunked\\x0d\\x0a",
    "connection: close\\x0d\\x0a", "connection: upgrade\\x0d\\x0a", "upgrade: h2c\\x0d\\x0a",
    "expect: 100-continue\\x0d\\x0a", "cookie: a\\x0d\\x0a", "chunked", ";a=b", "\\x0d\\x0a",
    "\\x0d\\x0a\\x0d\\x0a", "0\\x0d\\x0a\\x0d\\x0a", "1\\x0d\\x0aa\\x0d\\x0a",
)  # fmt: skip
