from __future__ import annotations

from dataclasses import dataclass

from gateway.tenant_memory import TenantMemory
from tests.gateway.support.manual_clock import ManualClock


@dataclass(frozen=True)
class Note:
    text: str
    size: int = 1


def memory(clock: ManualClock, *names: str) -> TenantMemory[Note]:
    made: TenantMemory[Note] = TenantMemory(8 << 10, 16 << 10, 60.0, clock)
    for name in names:
        made.add("ada", name.encode(), Note(name))
    return made


def latest(made: TenantMemory[Note], tenant_id: str, most: int = 9) -> str:
    return "".join(note.text for note in made.latest(tenant_id, most))


def test_the_latest_are_those_added_or_used_last() -> None:
    made = memory(ManualClock(), "a", "b", "c")
    made.add("bob", b"x", Note("x"))
    assert latest(made, "ada") == "cba"
    made.use("ada", b"a")
    assert latest(made, "ada") == "acb"
    assert latest(made, "ada", most=2) == "ac"
    assert latest(made, "cyd") == ""


def test_what_is_too_old_is_not_among_the_latest() -> None:
    clock = ManualClock()
    made = memory(clock, "a")
    clock.advance(59)
    made.add("ada", b"b", Note("b"))
    assert latest(made, "ada") == "ba"
    clock.advance(1)
    assert latest(made, "ada") == "b"
