"""Open reads and writes are answered once, or fail with their process. Late reads fail too."""

from __future__ import annotations

import pytest

from storage.disk.open_requests import OpenRequests
from storage.disk.wire import DiskEnded, DiskOutcome

READ_S, WRITE_S = 0.5, 5.0


@pytest.fixture
def asked() -> OpenRequests:
    return OpenRequests(READ_S, WRITE_S)


def ends(asked: OpenRequests) -> list[tuple[int, DiskOutcome]]:
    return [(end.ticket, end.outcome) for end in asked.take_ends()]


def test_an_answer_is_told_once(asked: OpenRequests) -> None:
    read, write = asked.read(3, now=0.0), asked.write(now=0.0)
    asked.answered(DiskEnded(write, DiskOutcome.DONE))
    asked.answered(DiskEnded(read, DiskOutcome.LOST))
    assert ends(asked) == [(write, DiskOutcome.DONE), (read, DiskOutcome.LOST)]
    assert ends(asked) == []


def test_an_answer_that_nobody_waits_for_is_dropped(asked: OpenRequests) -> None:
    read = asked.read(3, now=0.0)
    for ticket in (read, read, read + 1):
        asked.answered(DiskEnded(ticket, DiskOutcome.DONE))
    assert ends(asked) == [(read, DiskOutcome.DONE)]


def test_every_ticket_is_another(asked: OpenRequests) -> None:
    tickets = [asked.read(0, 0.0), asked.write(0.0), asked.refused(), asked.read(0, 0.0)]
    assert len(set(tickets)) == 4


def test_a_request_that_could_not_be_sent_has_failed(asked: OpenRequests) -> None:
    ticket = asked.refused()
    assert ends(asked) == [(ticket, DiskOutcome.FAILED)]


def test_late_reads_fail_and_their_answers_are_void(asked: OpenRequests) -> None:
    late = [asked.read(buffer, now=0.0) for buffer in (7, 8)]
    later = asked.read(9, now=0.2)
    assert asked.give_up_late_reads(now=READ_S) == []
    assert asked.give_up_late_reads(now=READ_S + 0.1) == [(late[0], 7), (late[1], 8)]
    assert ends(asked) == [(ticket, DiskOutcome.FAILED) for ticket in late]
    for ticket in (*late, later):
        asked.answered(DiskEnded(ticket, DiskOutcome.DONE))
    assert ends(asked) == [(later, DiskOutcome.DONE)]


def test_a_write_is_late_but_does_not_fail_by_that(asked: OpenRequests) -> None:
    write = asked.write(now=0.0)
    assert not asked.is_write_late(now=WRITE_S)
    assert asked.is_write_late(now=WRITE_S + 0.1)
    assert ends(asked) == []
    asked.answered(DiskEnded(write, DiskOutcome.DONE))
    assert not asked.is_write_late(now=WRITE_S + 0.1)
    assert ends(asked) == [(write, DiskOutcome.DONE)]


def test_with_the_process_everything_it_was_asked_fails(asked: OpenRequests) -> None:
    write, read = asked.write(now=0.0), asked.read(3, now=0.0)
    asked.fail_all()
    assert ends(asked) == [(read, DiskOutcome.FAILED), (write, DiskOutcome.FAILED)]
    asked.answered(DiskEnded(read, DiskOutcome.DONE))
    assert ends(asked) == []
    assert asked.give_up_late_reads(now=100.0) == []
    assert not asked.is_write_late(now=100.0)
