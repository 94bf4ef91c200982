from __future__ import annotations

import numpy as np

from gateway.config import Bounds
from gateway.prompts.tokens.splicing import START
from gateway.prompts.verbatim_turns.said import Said
from gateway.prompts.verbatim_turns.turn_memory import GeneratedTurn, TurnMemory
from tests.gateway.support.manual_clock import ManualClock

SIZE = 5 * 1024  # bytes of one turn and its entry
SAID = Said("", "", (), ())


def turn(tokens: int = 1024) -> GeneratedTurn:
    return GeneratedTurn(START, b"", np.zeros(tokens, np.int32), SAID, None)


def memory(clock: ManualClock, *, of_tenant: int = 4, of_all: int = 8) -> TurnMemory:
    bounds = Bounds(
        max_tenant_turn_bytes=of_tenant * SIZE, max_all_turn_bytes=of_all * SIZE, turn_life_s=60.0
    )
    return TurnMemory(bounds, clock)


def kept(turns: TurnMemory, tenant_id: str) -> str:
    return "".join(name for name in "abcdefgh" if turns.find(tenant_id, name.encode()))


def fill(turns: TurnMemory, tenant_id: str, names: str) -> None:
    for name in names:
        turns.add(tenant_id, name.encode(), turn())


def test_a_turn_is_found_by_its_tenant_alone() -> None:
    turns = memory(ManualClock())
    fill(turns, "ada", "a")
    assert turns.knows("ada")
    assert kept(turns, "ada") == "a"
    assert not turns.knows("bob")
    assert kept(turns, "bob") == ""


def test_a_tenant_s_bound_costs_its_own_turns_the_unused_first() -> None:
    turns = memory(ManualClock())
    fill(turns, "bob", "a")
    fill(turns, "ada", "abcd")
    turns.use("ada", b"a")
    fill(turns, "ada", "e")
    assert kept(turns, "ada") == "acde"
    assert kept(turns, "bob") == "a"


def test_the_bound_of_all_costs_whoever_has_most() -> None:
    turns = memory(ManualClock(), of_all=6)
    fill(turns, "ada", "ab")
    fill(turns, "bob", "abcd")
    fill(turns, "cyd", "ab")
    assert (kept(turns, "ada"), kept(turns, "bob"), kept(turns, "cyd")) == ("ab", "cd", "ab")
    assert turns.size == 6 * SIZE


def test_a_turn_larger_than_the_bound_is_not_remembered() -> None:
    turns = memory(ManualClock(), of_tenant=1)
    turns.add("ada", b"a", turn(1024))
    turns.add("ada", b"b", turn(1025))
    assert kept(turns, "ada") == "a"


def test_what_has_a_key_already_is_replaced() -> None:
    turns = memory(ManualClock())
    fill(turns, "ada", "aaa")
    assert turns.size == SIZE


def test_a_turn_lives_on_while_it_is_used() -> None:
    clock = ManualClock()
    turns = memory(clock)
    fill(turns, "ada", "ab")
    clock.advance(40)
    turns.use("ada", b"a")
    clock.advance(40)
    assert kept(turns, "ada") == "a"
    turns.forget_old()
    assert turns.size == SIZE
    clock.advance(60)
    turns.forget_old()
    assert (turns.size, turns.tenants()) == (0, set())


def test_a_tenant_is_forgotten() -> None:
    turns = memory(ManualClock())
    fill(turns, "ada", "ab")
    fill(turns, "bob", "a")
    turns.forget("ada")
    assert turns.tenants() == {"bob"}
    assert turns.size == SIZE


def test_a_bound_of_nothing_remembers_nothing() -> None:
    assert memory(ManualClock()).is_on
    assert not memory(ManualClock(), of_tenant=0).is_on
    assert not memory(ManualClock(), of_all=0).is_on
