"""A thread that waits for messages can be woken by another."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

from engine.link.codec import Codec
from engine.link.socket_link import SocketLink
from engine.link.waker import Waker

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


def test_nothing_happens_to_one_that_is_closed() -> None:
    waker = Waker()
    waker.clear()
    waker.close()
    waker.wake()
