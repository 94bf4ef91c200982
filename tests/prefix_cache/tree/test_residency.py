"""Every event in every state of a block, compared with the rules written as sets of tiers."""

from __future__ import annotations

from itertools import product

import pytest

from prefix_cache.errors import IllegalTransition
from prefix_cache.tree.residency import (
    BIT,
    DEVICE,
    DISK,
    HOST,
    ILLEGAL,
    IN_FLIGHT,
    TAKEN,
    WITH,
    WITHOUT,
    Change,
    after,
    change,
    is_legal,
)
from storage.move import Tier

Where = tuple[frozenset[Tier], frozenset[Tier]]  # tiers with copies, tiers with pending copies

CAN_BE_READ_FROM = {
    Tier.DEVICE: {Tier.HOST, Tier.DISK},
    Tier.HOST: {Tier.DEVICE},
    Tier.DISK: {Tier.DEVICE, Tier.HOST},
}


def where(state: int) -> Where:
    there = frozenset(tier for tier in Tier if state & BIT[tier])
    coming = frozenset(tier for tier in Tier if state & IN_FLIGHT * BIT[tier])
    return there, coming


def legal(there: frozenset[Tier], coming: frozenset[Tier]) -> bool:
    return (
        bool(there)
        and len(coming) <= 1
        and not there & coming
        and all(there & CAN_BE_READ_FROM[tier] for tier in coming)
    )


def expected(event: Change, tier: Tier, at: Where) -> Where | None:
    there, coming = at
    one = frozenset({tier})
    match event:
        case Change.BEGIN:
            ok = not coming and tier not in there and bool(there & CAN_BE_READ_FROM[tier])
            return (there, one) if ok else None
        case Change.LAND:
            return (there | one, coming - one) if tier in coming else None
        case Change.FAIL:
            return (there, coming - one) if tier in coming else None
        case Change.PLACE:
            return None if tier in there | coming else (there | one, coming)
        case Change.FORGET:
            ok = tier in there and len(there) > 1 and (not coming or tier is Tier.DISK)
            return (there - one, coming) if ok else None


@pytest.mark.parametrize("state", range(64))
def test_which_states_there_are(state: int) -> None:
    assert is_legal(state) == legal(*where(state))


@pytest.mark.parametrize(("event", "tier"), list(product(Change, Tier)))
def test_every_event_on_every_legal_state(event: Change, tier: Tier) -> None:
    happened = 0
    for state in filter(is_legal, range(64)):
        wanted = expected(event, tier, where(state))
        if wanted is None:
            assert after(event, tier, state) is None
            with pytest.raises(IllegalTransition, match=f"{event.value} {tier.value}"):
                change(bytes([state]), event, tier)
        else:
            assert where(change(bytes([state]), event, tier)[0]) == wanted
            happened += 1
    assert happened


@pytest.mark.parametrize(("event", "tier"), list(product(Change, Tier)))
def test_legal_states_lead_only_to_legal_states(event: Change, tier: Tier) -> None:
    follow = [after(event, tier, state) for state in range(64) if is_legal(state)]
    assert all(is_legal(state) for state in follow if state is not None)


@pytest.mark.parametrize(("event", "tier"), list(product(Change, Tier)))
def test_nothing_happens_in_a_state_that_cannot_be(event: Change, tier: Tier) -> None:
    for state in range(64):
        if not is_legal(state):
            with pytest.raises(IllegalTransition):
                change(bytes([state]), event, tier)


def test_one_illegal_block_in_a_run_raises() -> None:
    with pytest.raises(IllegalTransition, match=r"\[3\]"):
        change(bytes([1, 1, 3, 1]), Change.BEGIN, Tier.HOST)
    assert change(bytes([1, 1]), Change.BEGIN, Tier.HOST) == bytes([1 | 16, 1 | 16])


def test_the_tiers_in_which_a_block_has_a_slot() -> None:
    assert TAKEN[DEVICE] == [Tier.DEVICE]
    assert TAKEN[HOST | IN_FLIGHT * DEVICE] == [Tier.DEVICE, Tier.HOST]
    assert TAKEN[HOST | DISK] == [Tier.HOST, Tier.DISK]


def test_states_with_and_without_a_bit() -> None:
    assert b"\3\1\2\2".rstrip(WITH[HOST]) == b"\3\1"
    assert len(b"\3\1\4\2".translate(None, WITHOUT[DEVICE])) == 2
    assert set(WITH[HOST | DISK]) | set(WITHOUT[HOST | DISK]) == set(range(64))
    assert not set(WITH[HOST | DISK]) & set(WITHOUT[HOST | DISK])


def test_the_last_copy_is_never_forgotten() -> None:
    for tier, bit in BIT.items():
        assert after(Change.FORGET, tier, bit) is None
        others = [other for other in Tier if other is not tier]
        assert all(after(Change.FORGET, tier, bit | BIT[o]) == BIT[o] for o in others)


def test_no_state_is_the_mark_of_what_is_illegal() -> None:
    assert not is_legal(ILLEGAL % 64)
    assert ILLEGAL > 63
