from __future__ import annotations

import pytest

from gateway.caller import Caller
from gateway.overview.namespace_names import NamespaceName, ShownNamespaceNames
from gateway.sharing.namespaces import Namespaces
from gateway.state.records import EVERYONE

PRINT = b"fingerprint"
NAMES, GROUPS = {"tn_a": "acme"}, {"gr_x": "friends"}


@pytest.fixture
def namespaces() -> Namespaces:
    return Namespaces(b"secret".ljust(32, b"."))


def named(namespaces: Namespaces, namespace: bytes, owner: str = "tn_a") -> NamespaceName:
    return ShownNamespaceNames(namespaces).name(namespace, owner, NAMES, GROUPS, PRINT)


def caller(group_id: str | None = None) -> Caller:
    return Caller(tenant_id="tn_a", key_id="k", group_id=group_id)


def test_a_tenants_own_namespace_has_its_name(namespaces: Namespaces) -> None:
    own = namespaces.own(caller(), None, PRINT)
    assert named(namespaces, own) == NamespaceName("acme", "tn_a")


def test_one_with_a_salt_is_said_to_have_one(namespaces: Namespaces) -> None:
    salted = namespaces.own(caller(), "pepper", PRINT)
    assert named(namespaces, salted) == NamespaceName("acme, with a salt or an adapter", "tn_a")


def test_a_groups_namespace_is_no_single_tenants(namespaces: Namespaces) -> None:
    shared = namespaces.own(caller("gr_x"), None, PRINT)
    assert named(namespaces, shared) == NamespaceName("group friends", None)


def test_what_is_published_says_for_whom(namespaces: Namespaces) -> None:
    everyone, group = (namespaces.published(scope, PRINT) for scope in (EVERYONE, "gr_x"))
    assert named(namespaces, everyone).label == "published for everyone"
    assert named(namespaces, group).label == "published for group friends"


def test_a_deleted_tenant_is_shown_by_its_id(namespaces: Namespaces) -> None:
    own = namespaces.own(Caller(tenant_id="tn_gone", key_id="k"), None, PRINT)
    assert named(namespaces, own, "tn_gone") == NamespaceName("tn_gone", "tn_gone")


def test_another_fingerprint_makes_other_namespaces(namespaces: Namespaces) -> None:
    names = ShownNamespaceNames(namespaces)
    for fingerprint in (b"one", b"two", b"one"):
        own = namespaces.own(caller(), None, fingerprint)
        assert names.name(own, "tn_a", NAMES, GROUPS, fingerprint).label == "acme"
