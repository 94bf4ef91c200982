"""A request's body: read within its limit, parsed into a Struct, or refused with a typed error.

A request reserves memory for its body before the body is read (`body_memory.py`). The body is in
memory once. Readers look at pieces of the body, so that slow work does not keep other threads
waiting.

The cost of parsing depends on the number of values, not of bytes. A body of 16 MB may have millions
of values. The values are therefore counted before the body is parsed. Large bodies are parsed in a
thread.
"""

import codecs
import re
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from gateway.errors import BadRequest
from gateway.http.bodies.names import given_twice, name_given_twice
from gateway.http.bodies.outside_strings import PIECE, outside_strings, pieces_of
from gateway.http.body_memory import SMALL
from gateway.processes.fair_executor import Steps, at_once

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Body = bytes | bytearray
Part = Body | memoryview

MAX_INNER_DEPTH = 64  # maximum number of levels of JSON within a string
_UTF8 = codecs.getincrementaldecoder("utf-8")
# maximum number of arrays and objects, since millions would take seconds to build
_MAX_CONTAINERS = 1 << 16
_MAX_VALUES = 150_000  # maximum number of values of a body, enough for a prompt of 128k token ids
# A subnormal number takes 6 us to parse, a thousand times as long as other numbers. A subnormal
# number has an exponent of three digits, or many zeros.
_MAX_TINY = 256
_ZEROS = b"0" * 99
_TINY = re.compile(rb"[0-9.][eE]-0*[1-9][0-9]{2}|0{99,}")
_UNMARKED = bytes(set(range(256)) - set(b'"[]{},'))
_STEPS = np.zeros(256, np.int8)  # the change of nesting depth by each character
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_OBJECT = re.compile(rb"\s*\{")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
# msgspec's sign for an entry of an object, whose name its errors omit
_ENTRY = re.compile(r"\[\.\.\.\].*")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"contains unknown field `(?P<name>[^`]*)`")
_PART_TYPE = re.compile(r"\bcontent\[[^\]]*\]\.type$")
# An escape that its string's end cuts short: too few digits, or the first half of a surrogate pair.
_CUT_ESCAPE = re.compile(
    rb'(?<!\\)(?:\\\\)*\\u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}[^"]{0,4})"'
)
_QUOTED_INPUT = re.compile(r"^Invalid (?:enum )?value .*", re.DOTALL)


class JsonDecoder(Protocol[T_co]):
    """A decoder of bodies, such as msgspec's decoder. It raises msgspec's errors."""

    def decode(self, spelled: Body, /) -> T_co:
        """Decode a body."""
        ...


def is_flat(spelled: Body, most: int = 64) -> bool:
    """Return whether the body has at most `most` brackets, and so is mostly long texts or a list.

    Parsing such a body takes a fraction of the time of parsing many small objects.
    """
    return _count(spelled, b"[", most) + _count(spelled, b"{", most) <= most


def parse(
    decoder: JsonDecoder[T], body: Body, max_depth: int, bulk: Callable[[Body], Part] | None = None
) -> T:
    """Run all steps of `parse_steps` at once."""
    return at_once(parse_steps(decoder, body, max_depth, bulk))


def parse_steps(
    decoder: JsonDecoder[T], body: Body, max_depth: int, bulk: Callable[[Body], Part] | None = None
) -> Steps[T]:
    """Parse `body` as the Struct; raise BadRequest for malformed JSON.

    The body's outer object must have no name twice (`names.py`). Unknown names are ignored, but
    their text too must be UTF-8 and within the limits. `bulk` finds the parts of the body that the
    Struct keeps unparsed, as `Raw`. Their values are not counted.
    """
    try:
        _check_text(body)  # msgspec does not look into the values of unknown names
        yield
        _check_shape(body, max_depth)
        yield
        _check_values(body, bulk)
        yield
        _check_numbers(body)
        yield
        value = parse_part(decoder, body)
        check_names(body)
        return value
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8", code="invalid_json") from None
    # the JSON is nested deeper than Python allows, which may be less than `max_depth`
    except RecursionError:
        raise _too_deep(max_depth) from None


def parse_part(decoder: JsonDecoder[T], part: Body, where: str = "") -> T:
    """Parse as a Struct the `part` of a body that `parse_steps` has checked; raise BadRequest.

    `where` names the field that holds the part. An error's `param` begins with this name.
    """
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as error:
        raise invalid(str(error), where) from None
    except msgspec.DecodeError as error:
        found = _syntax_error(str(error), part)
        raise BadRequest(f"the body is not valid JSON: {found}", code="invalid_json") from None


def _syntax_error(message: str, part: Body) -> str:
    """Name an incomplete escape near the end, which msgspec reports as a truncated input."""
    if "truncated" in message and _CUT_ESCAPE.search(part, max(0, len(part) - 64)):
        return "a string ends with an incomplete `\\u` escape"
    return message


def check_names(body: Body) -> None:
    """Raise BadRequest if a valid JSON object has a name twice at its first level."""
    if not _OBJECT.match(body):
        return
    members = parse_part(_MEMBERS, body)
    if not members or len(body) == _least_bytes(members):
        return
    if count_separators(body, depth=1) >= len(members):
        raise given_twice(name_given_twice(body) if len(body) <= SMALL else "")


def _least_bytes(members: dict[str, msgspec.Raw]) -> int:
    return 1 + sum(len(name) + len(memoryview(value)) + 4 for name, value in members.items())


def check_inner(spelled: Body, param: str) -> None:
    """Check JSON within a body's strings by the limits on bodies; raise BadRequest for `param`."""
    try:
        _check_shape(spelled, MAX_INNER_DEPTH)
        _check_values(spelled, None)
        _check_numbers(spelled)
    except BadRequest as error:
        raise BadRequest(f"`{param}`: {error.message}", code=error.code, param=param) from None


def _check_text(body: Body) -> None:
    decoder = _UTF8()
    for piece in pieces_of(body):
        decoder.decode(piece)
    decoder.decode(b"", final=True)


def _check_shape(body: Body, max_depth: int) -> None:
    """Check the nesting and number of brackets outside of strings, vectorised for large bodies."""
    if is_flat(body, max_depth):
        return
    containers = depth = 0
    for marks in outside_strings(body, _UNMARKED):
        steps = _STEPS[marks]
        steps = steps[steps != 0]
        containers += int(np.count_nonzero(steps == 1))
        depths = depth + np.cumsum(steps, dtype=np.int32)
        if containers > _MAX_CONTAINERS:
            raise BadRequest(
                f"the JSON has more than {_MAX_CONTAINERS} arrays and objects", code="invalid_json"
            )
        if depths.max(initial=0) > max_depth:
            raise _too_deep(max_depth)
        depth = int(depths[-1]) if len(depths) else depth


def _check_values(body: Body, bulk: Callable[[Body], Part] | None) -> None:
    """Check the number of commas outside of strings.

    Strings are skipped only if there are too many commas in all.
    """
    if _count_commas(body) <= _MAX_VALUES:
        return
    apart: Part = bulk(body) if bulk is not None else b""
    if _count_commas(body) - _count_commas(apart) <= _MAX_VALUES:
        return
    if count_separators(body) - count_separators(apart) > _MAX_VALUES:
        raise BadRequest(f"the JSON has more than {_MAX_VALUES} values", code="invalid_json")


def _check_numbers(body: Body) -> None:
    """Limit the number of subnormal numbers. Parsing 150,000 would stop all threads for 0.9 s."""
    if sum(_count(body, one, _MAX_TINY) for one in (b"e-", b"E-", _ZEROS)) <= _MAX_TINY:
        return
    found = 0
    for outside in outside_strings(body):
        found += len(_TINY.findall(outside.tobytes()))
        if found > _MAX_TINY:
            raise BadRequest(
                f"the JSON has more than {_MAX_TINY} numbers of 1e-100 or less", code="invalid_json"
            )


def _count_commas(spelled: Part) -> int:
    return int(np.count_nonzero(np.frombuffer(spelled, np.uint8) == ord(",")))


def count_separators(spelled: Part, depth: int | None = None) -> int:
    """Count commas outside of strings, at any depth of brackets or only at `depth`."""
    found = at = 0
    for marks in outside_strings(spelled, _UNMARKED):
        commas = marks == ord(",")
        if depth is not None:
            depths = at + np.cumsum(_STEPS[marks], dtype=np.int32)
            commas &= depths == depth
            at = int(depths[-1]) if len(depths) else at
        found += int(np.count_nonzero(commas))
    return found


def _count(body: Body, part: bytes, enough: int) -> int:
    """Count the occurrences of `part` in `body`, up to `enough` + 1.

    `bytes.count` would take ten times as long. Each search reads one piece, because no other thread
    runs during a search, not even the event loop.
    """
    found = place = 0
    while found <= enough and place < len(body):
        at = body.find(part, place, place + PIECE + len(part) - 1)
        found += at >= 0
        place = at + 1 if at >= 0 else place + PIECE
    return found


def _too_deep(max_depth: int) -> BadRequest:
    return BadRequest(f"the JSON is nested deeper than {max_depth}", code="invalid_json")


def invalid(message: str, below: str = "") -> BadRequest:
    """Convert msgspec's error to BadRequest with the field as `param`, without quoting the input.

    The error's text also names the field, because OpenAI's client shows users only the text.
    `below` is the path of the part that msgspec read, if it did not read the whole body.
    """
    found = _AT.search(message)
    what = message[: found.start()] if found else message
    at = _ENTRY.sub("", found["path"]) if found else ""
    at = f"{below}{'.' if below and at and at[0] != '[' else ''}{at}"
    missing, unknown = _MISSING.search(what), _UNKNOWN.search(what)
    if _PART_TYPE.search(at) and what.startswith("Invalid"):
        what = "a part of this type is not supported: parts are `text`, not images, audio or files"
    what = _QUOTED_INPUT.sub("Invalid value", what)
    text = f"`{at}`: {what}" if at else what
    if missing is not None:
        return BadRequest(text, code="missing_required_parameter", param=_below(at, missing))
    if unknown is not None:
        return BadRequest(text, param=_below(at, unknown))
    return BadRequest(text, param=at or None)


def _below(at: str, named: re.Match[str]) -> str:
    return f"{at}.{named['name']}" if at else named["name"]
