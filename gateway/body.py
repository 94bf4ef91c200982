"""A request's body: read within its bound, parsed into a Struct, or refused with one typed error.

Knows: bytes, JSON, depth, and every way `msgspec` says no. Does not know: what the fields mean
(`openai/schema.py`) or how an error is spoken (`openai/errors.py`).
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from gateway.errors import BadRequest, BodyTooLarge

T = TypeVar("T")

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_QUOTED_INPUT = re.compile(r"^Invalid (?:enum )?value .*", re.DOTALL)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; BodyTooLarge as soon as it is known to pass `max_bytes`.

    A declared length is believed only when it is too large: a body sent in chunks, or one
    longer than it claims to be, is counted as it comes.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than {max_bytes} bytes")


def parse(decoder: msgspec.json.Decoder[T], body: bytes, max_depth: int) -> T:
    """The Struct in `body`, or BadRequest: this is the one seam where malformed JSON ends.

    Of a name that comes twice the last value holds, as in Python's own parser. Unknown names
    are passed over, but they too must be UTF-8 and within the depth.
    """
    try:
        body.decode()  # msgspec does not look into the values of names it passes over
        _check_depth(body, max_depth)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8", code="invalid_json") from None
    except RecursionError:  # deeper than Python can go, whatever `max_depth` says
        raise _too_deep(max_depth) from None


def _check_depth(body: bytes, max_depth: int) -> None:
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", body)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > max_depth:
            raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> BadRequest:
    return BadRequest(f"the JSON is nested deeper than {max_depth}", code="invalid_json")


def _invalid(message: str) -> BadRequest:
    """What msgspec found, with the field as `param` and without a copy of the input."""
    found = _AT.search(message)
    what = message[: found.start()] if found else message
    at = found["path"] if found else ""
    missing = _MISSING.search(what)
    if missing is not None:
        param = f"{at}.{missing['name']}" if at else missing["name"]
        return BadRequest(what, code="missing_required_parameter", param=param)
    return BadRequest(_QUOTED_INPUT.sub("Invalid value", what), param=at or None)
