"""Namespaces of prompts: separate in every dimension, and equal where blocks should be shared."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller import Caller
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.sharing.namespaces import Namespaces, PublishedIndex, ScopeMissing
from gateway.state.records import EVERYONE
from prefix_cache.namespace import derive_namespace

SECRET, MODEL = b"s" * 32, b"model-1"
NAMESPACES = Namespaces(SECRET)
SIZE = 4


def caller(tenant: str = "a", group: str | None = None, key: str = "key-1") -> Caller:
    return Caller(tenant, key, group_id=group)


def ids(*numbers: int) -> TokenIds:
    return np.array(numbers, np.int32)


# For each dimension, callers whose namespaces are all separate from each other.
APART = {
    "tenant": [caller("a"), caller("b"), caller("A"), caller("a\x00"), caller(" a")],
    "group": [caller("a"), caller("a", "g"), caller("a", "h"), caller("g"), caller("h")],
    "equal strings in tenant and group": [caller("x"), caller("y", "x")],
}
SALTS = [None, "", "a", "b", "salt", "a\x00", "\x00a", "all", "published", "group"]


@pytest.mark.parametrize("name", APART)
def test_tenants_and_groups_are_apart(name: str) -> None:
    for one, other in combinations(APART[name], 2):
        assert NAMESPACES.own(one, None, MODEL) != NAMESPACES.own(other, None, MODEL)


@pytest.mark.parametrize("who", [caller("a"), caller("a", "g")])
def test_salts_are_apart_unset_empty_and_set(who: Caller) -> None:
    seen = {NAMESPACES.own(who, salt, MODEL) for salt in SALTS}
    assert len(seen) == len(SALTS)


def test_namespaces_are_keyed_with_the_servers_secret_and_no_other_part() -> None:
    """Derive namespaces from the server's secret alone.

    The scopes are written out here, since several versions and the blocks on a disk share them.
    """
    shared = Namespaces(SECRET, share_all=True)
    spelled: dict[tuple[str, ...], bytes] = {
        ("tenant", "a"): NAMESPACES.own(caller("a"), None, MODEL),
        ("tenant", "a", "salt", "s"): NAMESPACES.own(caller("a", "g"), "s", MODEL),
        ("group", "g"): NAMESPACES.own(caller("a", "g"), None, MODEL),
        ("all",): shared.own(caller("a"), None, MODEL),
        ("all", "salt", "s"): shared.own(caller("a"), "s", MODEL),
        ("published",): NAMESPACES.published(EVERYONE, MODEL),
        ("published", "group", "g"): NAMESPACES.published("g", MODEL),
    }
    for scope, derived in spelled.items():
        assert derived == derive_namespace(SECRET, MODEL, scope), scope


def test_models_and_installations_are_apart() -> None:
    who = caller()
    seen = {
        Namespaces(secret).own(who, salt, model)
        for secret in (SECRET, b"t" * 32)
        for model in (MODEL, b"model-2", b"", b"tenant")
        for salt in (None, "model-2")
    }
    assert len(seen) == 2 * 4 * 2


def test_the_same_is_together() -> None:
    assert NAMESPACES.own(caller("a"), None, MODEL) == NAMESPACES.own(
        caller("a", key="another"), None, MODEL
    )
    assert NAMESPACES.own(caller("a"), "s", MODEL) == NAMESPACES.own(caller("a"), "s", MODEL)
    assert NAMESPACES.own(caller("a", "g"), None, MODEL) == NAMESPACES.own(
        caller("b", "g"), None, MODEL
    )
    assert NAMESPACES.own(caller("a"), None, MODEL) == Namespaces(SECRET).own(
        caller("a"), None, MODEL
    )


def test_a_salt_is_below_the_tenant_and_not_below_its_group() -> None:
    ada, bob = caller("a", "g"), caller("b", "g")
    assert NAMESPACES.own(ada, "s", MODEL) != NAMESPACES.own(bob, "s", MODEL)
    assert NAMESPACES.own(ada, "s", MODEL) == NAMESPACES.own(caller("a"), "s", MODEL)


def test_scopes_of_different_kinds_never_coincide() -> None:
    """Keep scopes of different kinds apart, even if tenants, groups and salts are named like a
    kind.
    """
    words = ["", "all", "published", "group", "tenant", "salt", EVERYONE]
    shared = Namespaces(SECRET, share_all=True)
    seen: list[bytes] = [shared.own(caller("x"), salt, MODEL) for salt in (None, *words[:-1])]
    for word in words[1:-1]:
        seen += [NAMESPACES.own(caller(word), salt, MODEL) for salt in (None, *words[:-1])]
        seen.append(NAMESPACES.own(caller("x", word), None, MODEL))
        if word != EVERYONE:
            seen.append(NAMESPACES.published(word, MODEL))
    seen.append(NAMESPACES.published(EVERYONE, MODEL))
    assert len(set(seen)) == len(seen)


names = st.text(max_size=6)
scopes = st.tuples(names.filter(bool), st.none() | names.filter(bool), st.none() | names)


@given(scopes, scopes)
def test_two_callers_share_only_as_the_rule_says(
    one: tuple[str, str | None, str | None], other: tuple[str, str | None, str | None]
) -> None:
    def rule(scope: tuple[str, str | None, str | None]) -> tuple[object, ...]:
        tenant, group, salt = scope
        if salt is not None:
            return ("salt", tenant, salt)
        return ("tenant", tenant) if group is None else ("group", group)

    found = [
        NAMESPACES.own(caller(tenant, group), salt, MODEL) for tenant, group, salt in (one, other)
    ]
    assert (found[0] == found[1]) == (rule(one) == rule(other))


def test_one_owner_shares_all_but_what_is_salted() -> None:
    shared = Namespaces(SECRET, share_all=True)
    everyone = shared.own(caller("a"), None, MODEL)
    assert everyone == shared.own(caller("b", "g"), None, MODEL)
    assert everyone != NAMESPACES.own(caller("all"), None, MODEL)
    salted = shared.own(caller("a"), "x", MODEL)
    assert salted == shared.own(caller("b"), "x", MODEL)
    assert salted not in (everyone, shared.own(caller("a"), "", MODEL))


@pytest.mark.parametrize("who", [caller(""), caller("a", ""), caller("", "g")])
@pytest.mark.parametrize("salt", [None, "s"])
@pytest.mark.parametrize("share_all", [False, True])
def test_where_something_is_missing_nobody_shares(
    who: Caller, salt: str | None, share_all: bool
) -> None:
    namespaces = Namespaces(SECRET, share_all=share_all)
    with pytest.raises(ScopeMissing):
        namespaces.path(who, salt, ids(1, 2, 3, 4), MODEL, SIZE)
    assert namespaces.path(caller("a", "g"), salt, ids(1, 2, 3, 4), MODEL, SIZE)


class TestPath:
    EVERYONES = tuple(range(12))
    GROUPS = tuple(range(20))  # part of a group's prefix, which continues a prefix published to all

    def namespaces(self, *, share_all: bool = False) -> Namespaces:
        index = PublishedIndex()
        index.renew(
            SIZE,
            [
                (EVERYONE, ids(*self.EVERYONES)),
                ("g", ids(*self.GROUPS)),
            ],
        )
        return Namespaces(SECRET, share_all=share_all, published=index)

    @pytest.mark.parametrize("salt", [None, "", "s"])
    def test_what_is_published_for_everyone_comes_first(self, salt: str | None) -> None:
        namespaces = self.namespaces()
        for who in (caller("a"), caller("b", "h")):
            path = namespaces.path(who, salt, ids(*range(30)), MODEL, SIZE)
            own = namespaces.own(who, salt, MODEL)
            assert path.spans == ((0, namespaces.published(EVERYONE, MODEL)), (3, own))

    def test_a_member_has_the_longer_one_of_its_group(self) -> None:
        namespaces = self.namespaces()
        member = caller("a", "g")
        long = namespaces.path(member, None, ids(*range(30)), MODEL, SIZE)
        own = namespaces.own(member, None, MODEL)
        assert long.spans == ((0, namespaces.published("g", MODEL)), (5, own))
        short = namespaces.path(member, None, ids(*range(13)), MODEL, SIZE)
        assert short.spans == ((0, namespaces.published(EVERYONE, MODEL)), (3, own))

    def test_one_token_less_or_another_is_the_callers_own(self) -> None:
        namespaces, own = self.namespaces(), NAMESPACES.own(caller(), None, MODEL)
        everyones = namespaces.published(EVERYONE, MODEL)
        cases = {
            (*range(11),): ((0, everyones), (2, own)),
            (*range(11), 99): ((0, everyones), (2, own)),
            (99, *range(1, 12)): ((0, own),),
            (0, 1, 2): ((0, own),),
        }
        for prompt, spans in cases.items():
            assert namespaces.path(caller(), None, ids(*prompt), MODEL, SIZE).spans == spans

    def test_behind_it_nothing_is_shared_but_what_was(self) -> None:
        namespaces = self.namespaces()
        prompt = ids(*range(30))
        paths = [
            namespaces.path(who, salt, prompt, MODEL, SIZE)
            for who in (caller("a"), caller("b"), caller("c", "h"))
            for salt in (None, "s")
        ]
        assert {path.at(2) for path in paths} == {namespaces.published(EVERYONE, MODEL)}
        assert len({path.at(3) for path in paths}) == len(paths)

    def test_another_models_or_sizes_index_matches_nothing(self) -> None:
        namespaces = self.namespaces()
        prompt, own = ids(*range(30)), namespaces.own(caller(), None, MODEL)
        assert namespaces.path(caller(), None, prompt, MODEL, 16).spans == ((0, own),)
        assert len(namespaces.path(caller(), None, prompt, MODEL, SIZE).spans) == 2
        assert namespaces.published(EVERYONE, MODEL) != namespaces.published(EVERYONE, b"model-2")

    def test_one_owner_has_what_is_published_too(self) -> None:
        namespaces = self.namespaces(share_all=True)
        path = namespaces.path(caller(), None, ids(*range(30)), MODEL, SIZE)
        own = namespaces.own(caller("b"), None, MODEL)
        assert path.spans == ((0, namespaces.published(EVERYONE, MODEL)), (3, own))


def test_a_schemas_namespaces_are_known_by_their_first_bytes() -> None:
    """Recognise a schema's namespaces by their first bytes.

    These are equal for any salt, model and module, but differ for another tenant or schema.
    """
    for who in (caller("a"), caller("a", "g")):
        first = tuple(NAMESPACES.schema(who, "one"))
        seen = set()
        for salt, model, digest in product((None, "", "s"), (MODEL, b"adapted"), ("x", "y")):
            own = NAMESPACES.module(who, salt, model, "one", digest)
            assert own.startswith(first)
            assert not NAMESPACES.module(who, salt, model, "two", digest).startswith(first)
            assert not NAMESPACES.module(caller("b"), salt, model, "one", digest).startswith(first)
            seen.add(own)
        assert len(seen) == 3 * 2 * 2
    member = NAMESPACES.module(caller("b", "g"), None, MODEL, "one", "x")
    assert member == NAMESPACES.module(caller("a", "g"), None, MODEL, "one", "x"), "together"
