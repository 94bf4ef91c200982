from __future__ import annotations

import pytest

from gateway.http.request_id import client_id_of, new_id


def of(*values: bytes) -> str | None:
    return client_id_of({"headers": [(b"x-request-id", value) for value in values]})


@pytest.mark.parametrize("given", [b"a", b"0f-3_a.b:c/d", b'{"~!"}', b"x" * 128])
def test_a_visible_id_is_repeated(given: bytes) -> None:
    assert of(given) == given.decode()


@pytest.mark.parametrize(
    "given", [b"", b"a b", b"a\tb", b"a\x00", b"a\n", b"\x7f", b"\xc3\xa4", b"x" * 129]
)
def test_any_other_is_as_none(given: bytes) -> None:
    assert of(given) is None


def test_none_and_two_are_none() -> None:
    assert of() is None
    assert of(b"a", b"b") is None


def test_own_ids_differ() -> None:
    assert len({new_id() for _ in range(100)}) == 100
