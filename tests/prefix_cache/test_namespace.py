"""Namespaces are equal only for equal secrets, fingerprints and scopes.

A path names each block's namespace.
"""

from __future__ import annotations

import pytest

from prefix_cache.namespace import (
    Namespace,
    NamespacePath,
    adapted_fingerprint,
    derive_namespace,
)
from tests.prefix_cache.support.scene import namespace, path


def test_equal_scopes_give_equal_namespaces() -> None:
    first = derive_namespace(b"secret", b"model", ("org", "1"))
    assert first == derive_namespace(b"secret", b"model", ("org", "1"))
    assert len(first) == 16


@pytest.mark.parametrize(
    ("secret", "fingerprint", "scope"),
    [
        (b"other", b"model", ("org", "1")),
        (b"secret", b"other", ("org", "1")),
        (b"secret", b"model", ("org1",)),
        (b"secret", b"model", ("or", "g1")),
        (b"secret", b"model", ("org", "1", "")),
        (b"secret", b"modelorg", ("1",)),
    ],
)
def test_another_secret_fingerprint_or_scope_gives_another_namespace(
    secret: bytes, fingerprint: bytes, scope: tuple[str]
) -> None:
    first = derive_namespace(b"secret", b"model", ("org", "1"))
    assert first != derive_namespace(secret, fingerprint, scope)


def test_a_path_names_the_namespace_of_each_block() -> None:
    where = path("pub", "group", "tenant", length=2)
    names = [where.at(block) for block in range(6)]
    expected = ["pub", "pub", "group", "group", "tenant", "tenant"]
    assert names == [namespace(name) for name in expected]


def test_a_span_ends_where_the_namespace_changes() -> None:
    a, b = namespace("a"), namespace("b")
    where = NamespacePath(((0, a), (2, a), (5, b)))
    assert [where.span_at(block)[1] for block in (0, 1, 2, 4, 5, 9)] == [5, 5, 5, 5, None, None]


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 3, 2)])
def test_spans_start_at_zero_and_rise(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="spans must start"):
        NamespacePath(tuple((start, namespace("a")) for start in starts))


def test_a_namespace_is_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        NamespacePath.single(Namespace(b"short"))
    with pytest.raises(ValueError, match="16 bytes"):
        NamespacePath(((0, namespace("a")), (2, Namespace(b"short"))))
    assert NamespacePath.single(namespace("a")).at(7) == namespace("a")


def test_an_adapter_has_another_fingerprint_than_the_model_and_any_other_adapter() -> None:
    assert adapted_fingerprint(b"model", None) == b"model"
    found = {
        adapted_fingerprint(b"model", None),
        adapted_fingerprint(b"model", b"one"),
        adapted_fingerprint(b"model", b"two"),
        adapted_fingerprint(b"mode", b"lone"),
        adapted_fingerprint(b"model", b""),
        adapted_fingerprint(adapted_fingerprint(b"model", b"one"), b"two"),
        adapted_fingerprint(b"model", b"one", 0),
        adapted_fingerprint(b"model", b"one", 7),
    }
    assert len(found) == 8


def test_a_path_goes_on_in_another_namespace() -> None:
    path = NamespacePath(((0, namespace("a")), (3, namespace("b"))))
    spans = [path.until(block, namespace("c")).spans for block in (0, 2, 3, 5)]
    a, b = path.spans
    assert spans == [
        ((0, namespace("c")),),
        (a, (2, namespace("c"))),
        (a, (3, namespace("c"))),
        (a, b, (5, namespace("c"))),
    ]
