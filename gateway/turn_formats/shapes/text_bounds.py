"""A schema's limits on a string, as Lark terminals that must all match the string.

`format` may have the values that llguidance supports in JSON schemas. Any other `format` has no
effect.
"""

import json
from collections.abc import Iterator

from gateway.turn_formats.grammar import embedded
from gateway.turn_formats.turn_format import Schema, lark_in

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_HEX = r"[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [
        rf"({_HEX}:){{7}}{_HEX}",
        rf"({_HEX}:){{6}}{_IPV4}",
        *(rf"({_HEX}:){{{n}}}(:{_HEX}){{1,{7 - n}}}" for n in range(1, 7)),
        rf":((:{_HEX}){{1,7}}|:)",
        rf"({_HEX}:){{1,7}}:",
        *(rf"({_HEX}:){{{n}}}(:{_HEX}){{0,{4 - n}}}:{_IPV4}" for n in range(1, 5)),
        rf"::({_HEX}:){{0,5}}{_IPV4}",
    ]
)
_COUNT = r"[0-9]+"
_DAYS = rf"({_COUNT}Y({_COUNT}M)?({_COUNT}D)?|{_COUNT}M({_COUNT}D)?|{_COUNT}D)"
_HOURS = rf"T({_COUNT}H({_COUNT}M)?({_COUNT}S)?|{_COUNT}M({_COUNT}S)?|{_COUNT}S)"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P({_DAYS}({_HOURS})?|{_HOURS}|{_COUNT}W)",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": r"[a-zA-Z][-+.a-zA-Z0-9]*:[-a-zA-Z0-9._~:/?#\[\]@!$&'()*+,;=%]+",
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
}
_TOO_MANY = 1 << 31


def bounds_of(schema: Schema) -> list[str]:
    """Write the terminals that a whole string must match, or [] without limits in `schema`.

    If the schema has a Lark grammar, this grammar is the only limit.
    """
    lark = lark_in(schema)
    return list(_bounds(schema)) if lark is None else [embedded("lark_text", lark)]


def _bounds(schema: Schema) -> Iterator[str]:
    least, most = _count(schema.get("minLength")), _count(schema.get("maxLength"))
    if least is not None or most is not None:
        yield f"/(?s:.{{{least or 0},{'' if most is None else most}}})/"
    pattern, kind = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        yield f"%pattern {json.dumps(pattern)}"
    if isinstance(kind, str) and kind in _FORMATS:
        yield "/" + _FORMATS[kind].replace("/", r"\/") + "/"


def _count(value: object) -> int | None:
    """Return a count, or None for any other value, whose text could change the grammar."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < _TOO_MANY else None
