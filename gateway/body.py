"""A request's body: read within its bound, parsed into a Struct, or refused with one typed error.

Knows: bytes, JSON, depth, and every way `msgspec` says no. Does not know: what the fields mean
(`openai/schema.py`) or how an error is spoken (`openai/errors.py`).
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from gateway.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

T = TypeVar("T")
Chars = npt.NDArray[np.uint8]
Marks = npt.NDArray[np.bool_]

_PLAIN = {"", "identity"}
# Millions of them would take seconds to build, and nobody is answered meanwhile.
_MAX_CONTAINERS = 1 << 16
_MAX_STRINGS = 1 << 17  # names of fields too
_MAX_VALUES = 1 << 21  # of lists and objects; a prompt in token ids is a list of them
_STEPS = np.zeros(256, np.int8)  # into the depth, by character
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_ENTRY = re.compile(r"\[\.\.\.\].*")  # of an object: which one msgspec does not say
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"contains unknown field `(?P<name>[^`]*)`")
_QUOTED_INPUT = re.compile(r"^Invalid (?:enum )?value .*", re.DOTALL)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; BodyTooLarge as soon as it is known to pass `max_bytes`.

    A declared length is believed only when it is too large: a body sent in chunks, or one
    longer than it claims to be, is counted as it comes. UnsupportedEncoding for a compressed one.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in _PLAIN:
        raise UnsupportedEncoding("a body with a `content-encoding` is not read; send it as it is")
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
        _check_shape(body, max_depth)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8", code="invalid_json") from None
    except RecursionError:  # deeper than Python can go, whatever `max_depth` says
        raise _too_deep(max_depth) from None


def parse_part(decoder: msgspec.json.Decoder[T], part: bytes) -> T:
    """The Struct in `part`, which is cut out of a body that `parse` has seen; or BadRequest."""
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None


def _check_shape(body: bytes, max_depth: int) -> None:
    """Count brackets outside of strings, strings, and commas outside of strings.

    Vectorised, for a body may be all brackets and quotes.
    """
    is_flat = _count(body, b"[", max_depth) + _count(body, b"{", max_depth) <= max_depth
    chars = np.frombuffer(body, np.uint8)
    if is_flat and not _may_be_many(chars):
        return
    quotes = _quotes(chars)
    _at_most(_MAX_STRINGS, _number(quotes) // 2, "strings")
    outside = ~np.logical_xor.accumulate(quotes)
    _at_most(_MAX_VALUES, _number((chars == ord(",")) & outside), "values")
    steps = _STEPS[chars[outside]]
    steps = steps[steps != 0]
    _at_most(_MAX_CONTAINERS, _number(steps == 1), "arrays and objects")
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > max_depth:
        raise _too_deep(max_depth)


def _may_be_many(chars: Chars) -> bool:
    """False when there are surely not too many strings and values, as in one long text."""
    if len(chars) <= 2 * _MAX_STRINGS:
        return False
    if _number(chars == ord(",")) > _MAX_VALUES:
        return True
    slashes = chars == ord("\\")
    surely_escaped = slashes[1:-1] & ~slashes[:-2]
    quotes = (chars[2:] == ord('"')) & ~surely_escaped
    return _number(quotes) // 2 >= _MAX_STRINGS


def _quotes(chars: Chars) -> Marks:
    """Where strings begin and end: the quotes that no backslash escapes."""
    quotes: Marks = chars == ord('"')
    slashes = np.zeros(len(chars) + 2, np.int8)
    slashes[1:-1] = chars == ord("\\")
    edges = np.flatnonzero(slashes[1:] != slashes[:-1])
    starts, ends = edges[::2], edges[1::2]  # of runs of backslashes; two of them are one
    escaped = ends[(ends - starts) % 2 == 1]
    quotes[escaped[escaped < len(chars)]] = False
    return quotes


def _number(marks: Marks) -> int:
    return int(np.count_nonzero(marks))


def _at_most(bound: int, count: int, of: str) -> None:
    if count > bound:
        raise BadRequest(f"the JSON has more than {bound} {of}", code="invalid_json")


def _count(body: bytes, char: bytes, enough: int) -> int:
    """How often `char` is in `body`, at most `enough` + 1; bytes.count is ten times as slow."""
    place = -1
    for found in range(enough + 1):
        place = body.find(char, place + 1)
        if place < 0:
            return found
    return enough + 1


def _too_deep(max_depth: int) -> BadRequest:
    return BadRequest(f"the JSON is nested deeper than {max_depth}", code="invalid_json")


def _invalid(message: str) -> BadRequest:
    """What msgspec found, with the field as `param` and without a copy of the input."""
    found = _AT.search(message)
    what = message[: found.start()] if found else message
    at = _ENTRY.sub("", found["path"]) if found else ""
    missing, unknown = _MISSING.search(what), _UNKNOWN.search(what)
    if missing is not None:
        return BadRequest(what, code="missing_required_parameter", param=_below(at, missing))
    if unknown is not None:
        return BadRequest(what, param=_below(at, unknown))
    return BadRequest(_QUOTED_INPUT.sub("Invalid value", what), param=at or None)


def _below(at: str, named: re.Match[str]) -> str:
    return f"{at}.{named['name']}" if at else named["name"]
