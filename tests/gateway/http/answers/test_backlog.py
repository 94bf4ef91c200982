"""Unsent bytes of streams to slow clients: sent in order, bounded, and dropped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest
from starlette.types import Message

from gateway.config import Bounds
from gateway.http.answers.backlog import Backlog, Backlogs
from gateway.http.request_head import RunningRequest

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


class Reader:
    """A connection whose client reads unless it is `paused`; `read` is the data that it has
    read.
    """

    def __init__(self, backlogs: Backlogs, tenant_id: str = "tn_1") -> None:
        self.write_paused = False
        self.pieces: list[bytes] = []
        self.begun = self.ended = 0
        self._reads = asyncio.Event()
        self.running = RunningRequest(asyncio.current_task())
        self.running.tenant_id = tenant_id
        self.backlog = Backlog(backlogs, self, self.running, self._send, self._send)

    @property
    def read(self) -> bytes:
        return b"".join(self.pieces)

    def pause(self) -> None:
        self.write_paused = True
        self._reads.clear()

    def resume(self) -> None:
        self.write_paused = False
        self._reads.set()

    async def _send(self, message: Message) -> None:
        """Send a message as uvicorn does, which waits before it accepts the message."""
        if self.write_paused:
            await self._reads.wait()
        if message["type"] == "http.response.start":
            self.begun += 1
            return
        self.pieces.append(message["body"])
        self.ended += not message["more_body"]


def piece(text: str, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


@contextmanager
def cut_off() -> Iterator[None]:
    """Expect that the test's own task is cancelled, as a request's task is that is cut off."""
    with pytest.raises(asyncio.CancelledError):
        yield
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_client_that_reads_is_sent_each_piece_at_once() -> None:
    reader = Reader(Backlogs(Bounds()))
    await reader.backlog.send(START)
    for text in "abc":
        await reader.backlog.send(piece(text))
    assert reader.pieces == [b"a", b"b", b"c"]
    assert reader.begun == 1


async def test_whoever_sends_does_not_wait_for_a_client_and_nothing_is_lost() -> None:
    reader = Reader(backlogs := Backlogs(Bounds()))
    reader.pause()
    await reader.backlog.send(START)
    for text in "abc":
        await reader.backlog.send(piece(text))
    await turns()
    assert (reader.begun, reader.pieces, len(backlogs)) == (0, [], 3)
    sent = asyncio.ensure_future(reader.backlog.sent())
    reader.resume()
    await sent
    assert (reader.begun, reader.pieces, len(backlogs)) == (1, [b"abc"], 0), "sent together"
    await reader.backlog.send(piece("d", more=False))
    assert (reader.read, reader.ended) == (b"abcd", 1)


async def test_no_more_is_handed_over_at_once_than_a_connection_may_hold() -> None:
    reader = Reader(Backlogs(Bounds()))
    reader.pause()
    for _ in range(10):
        await reader.backlog.send(piece("x" * 20_000))
    reader.resume()
    await reader.backlog.sent()
    assert {len(piece) for piece in reader.pieces} == {80_000, 40_000}


async def test_whatever_the_pace_all_is_read_in_order() -> None:
    backlogs = Backlogs(Bounds())
    for seed in range(50):
        random, reader = Random(seed), Reader(backlogs)
        texts = [str(number) * random.randrange(1, 4) for number in range(40)]
        for text in texts:
            random.choice([reader.pause, reader.resume])()
            await reader.backlog.send(piece(text))
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
        reader.resume()
        await reader.backlog.sent()
        assert reader.read.decode() == "".join(texts)
        assert len(backlogs) == 0


async def test_a_stream_too_much_of_which_waits_is_cut_off() -> None:
    reader = Reader(backlogs := Backlogs(Bounds(max_unread_bytes=10)))
    await reader.backlog.send(START)
    reader.pause()
    await reader.backlog.send(piece("0123456789"))
    assert reader.running.error.code == "shutting_down", "the control: it is not cut off"
    with cut_off():
        await reader.backlog.send(piece("x"))
        await asyncio.sleep(0)
    assert reader.running.error.code == "answer_not_read"
    assert len(backlogs) == 0
    await reader.backlog.send(piece("after the gap"))
    ending = asyncio.ensure_future(reader.backlog.end(piece("error", more=False)))
    await turns()
    assert not ending.done(), "it is for the client to read"
    reader.resume()
    await ending
    assert (reader.pieces, reader.ended) == ([b"error"], 1)


async def test_what_has_not_begun_is_not_ended_and_what_has_ended_is_not_ended_again() -> None:
    reader = Reader(Backlogs(Bounds()))
    reader.pause()
    await reader.backlog.send(START)
    reader.backlog.drop()
    reader.resume()
    await reader.backlog.end(piece("error", more=False))
    assert (reader.begun, reader.ended) == (0, 0), "the error is to be its answer"
    other = Reader(Backlogs(Bounds()))
    await other.backlog.send(START)
    await other.backlog.send(piece("all", more=False))
    await other.backlog.end(piece("error", more=False))
    assert (other.read, other.ended) == (b"all", 1)


class Crowd:
    """Connections whose clients do not read, each with a task that can be cut off."""

    def __init__(self, bounds: Bounds) -> None:
        self.backlogs = Backlogs(bounds)
        self._tasks: list[asyncio.Task[Reader]] = []

    async def unread(self, tenant_id: str, size: int) -> asyncio.Task[Reader]:
        """Add a connection with `size` unread bytes."""
        made = asyncio.Event()

        async def wait() -> Reader:
            reader = Reader(self.backlogs, tenant_id)
            reader.pause()
            await reader.backlog.send(piece("x" * size))
            made.set()
            await asyncio.Event().wait()
            return reader

        task = asyncio.ensure_future(wait())
        self._tasks.append(task)
        await made.wait()
        await turns()
        return task

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_of_a_tenant_that_has_too_much_the_longest_is_cut_off() -> None:
    crowd = Crowd(Bounds(max_tenant_unread_bytes=100))
    small, large = await crowd.unread("a", 20), await crowd.unread("a", 60)
    other = await crowd.unread("b", 90)
    assert not large.done(), "the control"
    last = await crowd.unread("a", 30)
    assert [task.done() for task in (small, large, last, other)] == [False, True, False, False]
    assert len(crowd.backlogs) == 20 + 30 + 90
    await crowd.leave()


async def test_of_all_the_longest_of_the_tenant_with_the_most_is_cut_off() -> None:
    crowd = Crowd(Bounds(max_all_unread_bytes=200))
    hogs = [await crowd.unread("hog", size) for size in (50, 60, 50)]
    victim = await crowd.unread("a", 39)
    assert not any(task.done() for task in hogs), "the control"
    late = await crowd.unread("b", 5)
    assert [task.done() for task in (*hogs, victim, late)] == [False, True, False, False, False]
    assert len(crowd.backlogs) == 50 + 50 + 39 + 5
    await crowd.leave()
