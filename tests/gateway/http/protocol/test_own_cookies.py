"""The gateway reads only its own cookies from a request."""

from __future__ import annotations

import pytest

from gateway.http.protocol.own_cookies import own_cookies


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (b"ratoon_admin=abc", b"ratoon_admin=abc"),
        (b"other=1; ratoon_admin=abc; more=2", b"ratoon_admin=abc"),
        (b"ratoon_admin=a;ratoon_usage=b", b"ratoon_admin=a; ratoon_usage=b"),
        (b"other=ratoon_admin=abc", b""),
        (b"other=1", b""),
        (b"", b""),
        (b"ratoon_admin=abc; other=" + b"x" * 9000, b""),
    ],
)
def test_only_the_pages_own_are_read(sent: bytes, read: bytes) -> None:
    assert own_cookies(sent) == read
