"""Names that an object has twice are found in any spelling, and other names are not reported."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.http.bodies.body import check_names, parse
from gateway.http.bodies.names import check_all_names

ANY = msgspec.json.Decoder()
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["model", "cache_salt"])
PAIRS = st.lists(st.tuples(NAMES, JSON), max_size=6)
BLANKS = st.sampled_from(["", " ", "\n  ", "\t"])


def spelled(pairs: list[tuple[str, Any]], blank: str, *, ascii_only: bool) -> bytes:
    """Write an object with these members; their names may be any text."""
    members = [
        f"{blank}{json.dumps(name, ensure_ascii=ascii_only)}{blank}:{blank}"
        f"{json.dumps(value, ensure_ascii=ascii_only)}{blank}"
        for name, value in pairs
    ]
    return f"{blank}{{{','.join(members) or blank}}}{blank}".encode()


def is_refused(check: Any, body: bytes) -> bool:
    try:
        check(body)
    except BadRequest:
        return True
    return False


@given(PAIRS, BLANKS, st.booleans())
def test_a_body_is_refused_exactly_where_its_object_has_a_name_twice(
    pairs: list[tuple[str, Any]], blank: str, ascii_only: bool
) -> None:
    body = spelled(pairs, blank, ascii_only=ascii_only)
    names = [name for name, _ in pairs]
    assert is_refused(check_names, body) == (len(set(names)) < len(names))


@given(PAIRS, BLANKS)
def test_in_an_object_within_it_is_refused_where_all_are_looked_at(
    pairs: list[tuple[str, Any]], blank: str
) -> None:
    body = b'{"deep": [1, ' + spelled(pairs, blank, ascii_only=True) + b"]}"
    names = [name for name, _ in pairs]
    assert is_refused(check_all_names, body) == (len(set(names)) < len(names))
    assert not is_refused(check_names, body)


@pytest.mark.parametrize(
    "twice",
    [
        b'{"cache_salt":"mine","cache_salt":"theirs"}',
        b'{"cache_salt": "mine", "cache_salt": "theirs"}',
        b'{"cache_salt":"mine","cache\\u005fsalt":"theirs"}',
        b'{"cache_salt":"mine","a":"\\",\\"cache_salt\\":","cache_salt":"mine"}',
        b'{"cache_salt":{"cache_salt":1},"model":[{}],"cache_salt":[1,2,{"a":","}]}',
        b'{"cache_salt":"' + b"x" * 100_000 + b'","cache_salt":1}',
    ],
)
def test_the_spelling_of_a_name_does_not_count(twice: bytes) -> None:
    with pytest.raises(BadRequest, match="twice") as refused:
        parse(ANY, twice, 64)
    assert refused.value.code == "invalid_json"
    assert refused.value.param == (None if len(twice) > 1 << 16 else "cache_salt")
    once = twice.replace(b'"cache_salt":', b'"salt":', 1)
    assert parse(ANY, once, 64), "the control"


@pytest.mark.parametrize("other", [b"[]", b"1", b'"{"', b"null", b"{}", b"[1,[2,3]]", b" { } "])
def test_other_json_and_an_empty_object_have_no_name_twice(other: bytes) -> None:
    check_names(other)
    check_all_names(other)


def test_numbers_are_not_made_to_compare_names() -> None:
    number = b"9" * 5000  # too many digits for Python's int
    check_all_names(b'{"a":' + number + b',"b":1e99999,"c":NaN}')
    with pytest.raises(BadRequest, match="`a` is given twice"):
        check_all_names(b'{"a":' + number + b',"a":1}')


def test_no_name_is_quoted_that_could_be_something_else() -> None:
    with pytest.raises(BadRequest) as refused:
        check_all_names(b'{"my secret":1,"my secret":2}')
    assert "secret" not in refused.value.message
