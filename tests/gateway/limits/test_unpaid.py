"""Charges beyond the bound on stored charges: they are lost, counted, and reported in the log."""

from __future__ import annotations

import pytest

from gateway.limits.unpaid import Unpaid


def test_what_is_lost_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[None] = []
    unpaid = Unpaid[int](3, lambda: counted.append(None))
    for charge in range(3):
        unpaid.append(charge)
    unpaid.appendleft(unpaid.popleft())
    assert (unpaid.lost, counted, caplog.messages) == (0, [], []), "the control: there was a place"
    for charge in range(3, 8):
        unpaid.append(charge)
    assert ([*unpaid], unpaid.lost) == ([5, 6, 7], 5)
    unpaid.appendleft(4)
    assert ([*unpaid], unpaid.lost, len(counted)) == ([4, 5, 6], 6, 6)
    assert [said.rpartition(": ")[2] for said in caplog.messages] == [
        "1 so far",
        "2 so far",
        "4 so far",
    ]
