"""A failed start is explained by the error of the rank that failed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from engine.models.errors import ModelError, ModelNotServed
from engine.ranks.collectives import RankLeft
from engine.ranks.leader import OtherRanks, RankGone
from engine.ranks.messages import ENCODER, NotStarted, RankMessage, Started
from engine.ranks.ring import RingWriter
from engine.ranks.team import RankNotStarted, Team, why_not_started
from storage.disk.wire import Channel


class OneOther:
    """A team with one other rank, which exists only as the reports that a test sends."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.others = OtherRanks(RingWriter(1), [Channel(ours)])

    def report(self, message: RankMessage) -> None:
        self.end.send(ENCODER.encode(message))

    def close(self) -> None:
        self.end.close()
        self.others.close()


@pytest.fixture
def other() -> Iterator[OneOther]:
    with closing(OneOther()) as made:
        yield made


def fail_beside(other: OneOther) -> None:
    """Fail as gloo does in a process after its peer has ended."""
    with why_not_started(cast(Team, other)):
        raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(("is_refused", "kind"), [(True, ModelNotServed), (False, RankNotStarted)])
def test_a_ranks_own_words_are_the_error(
    other: OneOther, is_refused: bool, kind: type[ModelError]
) -> None:
    other.report(NotStarted("not one block fits", is_refused))
    other.end.close()
    with pytest.raises(kind, match=r"^rank 1: not one block fits$"):
        fail_beside(other)


def test_where_no_rank_has_said_anything_the_error_stays(other: OneOther) -> None:
    with pytest.raises(RuntimeError, match="closed by peer"):
        fail_beside(other)


def test_a_rank_that_has_left_without_a_word_is_gone(other: OneOther) -> None:
    with pytest.raises(RankGone, match="another rank is gone"), why_not_started(cast(Team, other)):
        raise RankLeft("Connection closed by peer")


def test_who_waits_for_a_rank_that_ends_is_told(other: OneOther) -> None:
    other.report(Started())
    other.end.close()
    assert other.others.wait_for(Started, 0, 10.0) == Started(), "the control: it came before"
    with pytest.raises(RankGone):
        other.others.wait_for(Started, 0, 10.0)
