"""A thread that waits for messages can be woken by another thread."""

from __future__ import annotations

import select
import threading
import time
from contextlib import closing
from pathlib import Path

from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.link.engine_end.waker import Waker

LONG_S = 60.0


def test_a_link_that_waits_returns_once_it_is_woken(tmp_path: Path) -> None:
    with (
        closing(Waker()) as waker,
        closing(SocketLink(str(tmp_path / "s"), codec=Codec())) as link,
    ):
        link.wake_by(waker)
        waker.wake()
        began = time.monotonic()
        assert link.receive(timeout_s=LONG_S) == []
        thread = threading.Timer(0.05, waker.wake)
        thread.start()
        assert link.receive(timeout_s=LONG_S) == []
        assert time.monotonic() - began < LONG_S
        thread.join()
        assert link.receive(timeout_s=0.01) == [], "it is woken once for each time"


def test_one_that_is_closed_wakes_nobody() -> None:
    waker, other = closed_and_next()
    with closing(other):
        waker.wake()
        assert not is_readable(other)
        other.wake()
        assert is_readable(other), "the control: it would have been seen"
        other.clear()
        assert not is_readable(other)


def closed_and_next() -> tuple[Waker, Waker]:
    """Return a closed waker, and a new waker with the same file descriptor.

    Fails if other threads always get that descriptor first.
    """
    for _ in range(50):
        waker = Waker()
        number = waker.fd
        waker.close()
        other = Waker()
        if other.fd == number:
            return waker, other
        other.close()
    raise AssertionError("the control: the number is another's now")


def is_readable(waker: Waker) -> bool:
    return bool(select.select([waker.fd], [], [], 0)[0])
