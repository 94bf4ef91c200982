"""Listeners for faults of the state, and the moments when they are called."""

from __future__ import annotations

import asyncio

import pytest

from gateway.state.faults import STATUSES, Fault, FaultWatch, damaged, evicts, gone, no_room

DAMAGED, FULL = damaged("state", "s"), no_room("the disk")


class Patient:
    """A watched store whose next check finds the fault that a test gives."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.next: Fault | None = None
        self.looks = 0
        self.looked = asyncio.Event()

    async def check(self) -> None:
        self.looks += 1
        self.fault = self.next
        self.looked.set()


async def test_the_worst_is_named_all_are_told_and_each_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two, told = Patient(), Patient(), list[set[str]]()
    watch = FaultWatch([one, two], told.append)
    await watch.look()
    assert (watch.worst(), told) == (None, [set()])
    one.next, two.next = FULL, DAMAGED
    await watch.look()
    await watch.look()
    assert watch.worst() == DAMAGED
    assert told[1:] == [{"disk_full", "state_damaged"}] * 2
    assert caplog.text.count("state_damaged: s is damaged") == 1
    two.next = None
    await watch.look()
    assert watch.worst() == FULL
    assert "state_damaged: no more" in caplog.text


async def test_it_looks_at_once_and_on_and_ends() -> None:
    patient = Patient()
    async with asyncio.timeout(60), FaultWatch([patient], lambda _: None).kept():
        await patient.looked.wait()
    looks = patient.looks
    await asyncio.sleep(0)
    assert patient.looks == looks


def test_every_fault_has_a_place_in_the_order_and_says_what_to_do() -> None:
    faults = [damaged("state", "s"), gone("state", "s"), damaged("limits", "l")]
    faults += [gone("limits", "l"), evicts("allkeys-lru"), no_room("the disk")]
    assert [fault.status for fault in faults] == list(STATUSES)
    for fault in faults:
        assert any(one in fault.reason for one in ("--new-state", "make room", "set it to"))
