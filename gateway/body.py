"""A request's body: read within its bound, parsed into a Struct, or refused with one typed error.

What parsing costs goes by how many values there are, not by bytes: a body of 16 MB may be
millions of them, and parsing gives the event loop to nobody else. So they are counted first.

Knows: bytes, JSON, depth, and every way `msgspec` says no. Does not know: what the fields mean
(`openai/schema.py`) or how an error is spoken (`openai/errors.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from gateway.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

T = TypeVar("T")

_PLAIN = {"", "identity"}
_MAX_CONTAINERS = 1 << 16  # millions would take seconds to build, on the event loop
_MAX_VALUES = 150_000  # more than a context of 128k token ids
_UNMARKED = bytes(set(range(256)) - set(b'"[]{},'))
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


def parse(
    decoder: msgspec.json.Decoder[T],
    body: bytes,
    max_depth: int,
    bulk: Callable[[bytes], bytes] | None = None,
) -> T:
    """The Struct in `body`, or BadRequest: this is the one seam where malformed JSON ends.

    Of a name that comes twice the last value holds, as in Python's own parser. Unknown names
    are passed over, but they too must be UTF-8 and within the bounds. The values in what `bulk`
    cuts out of the body are not counted: in the Struct it is `Raw`, so nothing is made of them.
    """
    try:
        body.decode()  # msgspec does not look into the values of names it passes over
        _check_shape(body, max_depth)
        _check_values(body, bulk)
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
    """Count brackets outside of strings; vectorised, for a body may be all brackets and quotes."""
    if _count(body, b"[", max_depth) + _count(body, b"{", max_depth) <= max_depth:
        return
    steps = _STEPS[_marks(body)]
    steps = steps[steps != 0]
    if np.count_nonzero(steps == 1) > _MAX_CONTAINERS:
        raise BadRequest(
            f"the JSON has more than {_MAX_CONTAINERS} arrays and objects", code="invalid_json"
        )
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > max_depth:
        raise _too_deep(max_depth)


def _check_values(body: bytes, bulk: Callable[[bytes], bytes] | None) -> None:
    """Count commas: all of them, and only if those are too many the ones outside of strings."""
    if _count_commas(body) <= _MAX_VALUES:
        return
    apart = bulk(body) if bulk is not None else b""
    if _count_commas(body) - _count_commas(apart) <= _MAX_VALUES:
        return
    if count_separators(body) - count_separators(apart) > _MAX_VALUES:
        raise BadRequest(f"the JSON has more than {_MAX_VALUES} values", code="invalid_json")


def _count_commas(spelled: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(spelled, np.uint8) == ord(",")))


def count_separators(spelled: bytes, depth: int | None = None) -> int:
    """Commas outside of strings; with `depth`, only those within so many brackets."""
    marks = _marks(spelled)
    commas = marks == ord(",")
    if depth is not None:
        commas &= np.cumsum(_STEPS[marks], dtype=np.int32) == depth
    return int(np.count_nonzero(commas))


def _marks(spelled: bytes) -> npt.NDArray[np.uint8]:
    """Brackets and commas outside of strings."""
    if b"\\" in spelled:
        spelled = spelled.replace(rb"\\", b"").replace(rb"\"", b"")
    chars = np.frombuffer(spelled.translate(None, _UNMARKED), np.uint8)
    is_quote = chars == ord('"')
    in_string = np.cumsum(is_quote, dtype=np.uint8) & 1
    is_mark: npt.NDArray[np.bool_] = ~(is_quote | in_string.astype(np.bool_))
    return np.compress(is_mark, chars)


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
