"""The refusal of JSON objects that have a name twice.

Readers differ in which of the two values counts. A proxy before this server may allow some models
or set the salt. The proxy may read the first `cache_salt`, and this server the last. A tenant's
body must therefore have no name twice at its first level, where model, salt and limits are set
(`body.py`). Deeper levels hold messages, tools and schemas. The model reads them, and no right
depends on them. The operator's bodies and files with keys have no name twice at any level.
"""

import json
from collections import Counter
from typing import Any

from gateway.errors import BadRequest

_LONGEST = 64


def check_all_names(spelled: bytes | bytearray) -> None:
    """Raise BadRequest if any object in valid JSON has a name twice."""
    _read(spelled, _once)


def name_given_twice(spelled: bytes | bytearray) -> str:
    """Return the name that occurs most often at the first level of a valid JSON object."""
    names: list[str] = [name for name, _ in _read(spelled, list)]
    return _most_often(names)


def _most_often(names: list[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def given_twice(name: str) -> BadRequest:
    """Make the error for a repeated name. It quotes only a name that a field could have."""
    if not name.isidentifier() or len(name) > _LONGEST:
        return BadRequest("a name is given twice", code="invalid_json")
    return BadRequest(f"`{name}` is given twice", code="invalid_json", param=name)


def _once(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise given_twice(_most_often(names))


def _read(spelled: bytes | bytearray, objects: Any) -> Any:
    """Parse JSON. `objects` converts the pairs of an object. Numbers, maybe huge, stay unparsed."""
    return json.loads(
        spelled.decode(),
        object_pairs_hook=objects,
        parse_int=_nothing,
        parse_float=_nothing,
        parse_constant=_nothing,
    )


def _nothing(_: str) -> None:
    """Return None for a number, without parsing it."""
