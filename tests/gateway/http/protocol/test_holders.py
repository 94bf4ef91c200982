"""A new connection closes one of the owner with the most connections, or is itself refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TooManyRequests
from gateway.http.body_memory import OPERATOR
from gateway.http.protocol.holders import STRANGERS, Holders

MOST = 12


@dataclass(eq=False)
class Line:
    """A stand-in for a connection."""

    is_idle: bool = True
    owner: str = STRANGERS


def entered(holders: Holders[Line], count: int, owner: str | None = None) -> list[Line]:
    """Enter `count` connections; connections with an owner have shown a key."""
    lines = []
    for _ in range(count):
        line = Line(owner=owner or STRANGERS)
        assert holders.enter(line) is None
        if owner is not None:
            holders.tell(line, owner)
        lines.append(line)
    return lines


def test_the_oldest_stranger_goes_whatever_it_does() -> None:
    holders = Holders[Line](3)
    first, second, third = entered(holders, 3)
    first.is_idle = second.is_idle = False
    assert holders.enter(Line()) is first
    assert holders.enter(Line()) is second
    assert holders.enter(Line()) is third


def test_of_a_tenant_s_the_one_goes_that_is_idle_for_longest() -> None:
    holders = Holders[Line](3)
    first, second, third = entered(holders, 3, "tn_a")
    first.is_idle = False
    holders.tell(second, "tn_a")
    assert holders.enter(Line()) is third


def test_who_holds_most_loses_one_and_strangers_are_one() -> None:
    holders = Holders[Line](8)
    few = entered(holders, 2, "tn_few")
    many = entered(holders, 4, "tn_many")
    strangers = entered(holders, 2)
    newcomers = [Line() for _ in range(20)]
    gone = [holders.enter(one) for one in newcomers]
    assert gone == [many[0], *strangers, *newcomers[:17]], "who comes in a crowd goes with it"
    assert not set(few) & set(gone)


def test_where_all_are_busy_the_newcomer_goes() -> None:
    holders = Holders[Line](3)
    for line in entered(holders, 3, "tn_a"):
        line.is_idle = False
    late = Line()
    assert holders.enter(late) is late
    holders.leave(late)  # leaving a second time has no effect


def test_a_tenant_has_no_more_than_half_of_a_port_that_is_nearly_full() -> None:
    holders = Holders[Line](16)
    entered(holders, 14, "tn_a")
    line = Line()
    holders.enter(line)
    with pytest.raises(TooManyRequests, match="of 16 connections a tenant may hold 8") as refused:
        holders.tell(line, "tn_a")
    assert refused.value.code == "too_many_connections"
    holders.tell(line, "tn_b")
    holders.tell(line, OPERATOR)


def test_one_that_has_gone_has_no_owner() -> None:
    holders = Holders[Line](1)
    (gone,) = entered(holders, 1)
    assert holders.enter(Line()) is gone
    holders.tell(gone, "tn_a")
    assert holders.enter(Line()) is not gone


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "key", "busy", "idle", "leave"]),
        st.integers(0, 30),
        st.sampled_from(["tn_a", "tn_b", "tn_c", OPERATOR]),
    ),
    max_size=150,
)


@given(STEPS)
def test_nobody_loses_one_to_somebody_with_as_few(steps: list[tuple[str, int, str]]) -> None:
    """At the limit, take a connection from the owner with most, and never from an owner with as few
    as the new one.

    A connection that is busy with a key's request is not closed.
    """
    holders, inside = Holders[Line](MOST), list[Line]()
    for what, number, owner in steps:
        if what == "come":
            line = Line()
            inside.append(line)
            before = Counter(one.owner for one in inside)
            gone = holders.enter(line)
            assert (gone is None) == (len(inside) <= MOST)
            if gone is None:
                continue
            inside.remove(gone)
            assert gone.is_idle or gone.owner == STRANGERS
            if gone is not line:
                spare = {one.owner for one in inside if one.is_idle or one.owner == STRANGERS}
                others = [o for o in spare if o != STRANGERS or before[o] > 1]
                assert all(before[gone.owner] >= before[one] for one in others)
        elif inside:
            line = inside[number % len(inside)]
            if what == "leave":
                holders.leave(line)
                inside.remove(line)
            elif what == "key":
                line.owner = owner
                try:
                    holders.tell(line, owner)
                except TooManyRequests:
                    assert Counter(one.owner for one in inside)[owner] > MOST // 2
                    assert owner != OPERATOR
            else:
                line.is_idle = what == "idle"
