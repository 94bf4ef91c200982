"""The ring: every reader gets every message once, in order, whatever the messages' lengths."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.ranks.ring import RingReader, RingStuck, RingWriter

SMALL = 64


@pytest.fixture
def writer() -> Iterator[RingWriter]:
    with closing(RingWriter(2, SMALL, patience_s=0.05)) as made:
        yield made


def read_all(reader: RingReader) -> list[bytes]:
    return list(iter(reader.read, None))


@given(
    messages=st.lists(st.binary(max_size=3 * SMALL), max_size=30),
    pauses=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_readers_that_keep_up_get_all_messages(messages: list[bytes], pauses: list[bool]) -> None:
    """Send messages shorter and longer than the ring, which wrap around its end."""
    with closing(RingWriter(2, SMALL)) as ring, ThreadPoolExecutor(2) as threads:

        def read(number: int) -> list[bytes]:
            got: list[bytes] = []
            with closing(RingReader(ring.ends[number])) as reader:
                while len(got) < len(messages):
                    message = reader.read()
                    if message is None:
                        select.select([reader], [], [], 5.0)
                    else:
                        got.append(message)
            return got

        readers = [threads.submit(read, number) for number in range(2)]
        for message, pause in zip(messages, pauses, strict=False):
            ring.write(message)
            if pause:
                os.sched_yield()
        assert [reader.result() for reader in readers] == [messages, messages]


def test_a_reader_that_takes_nothing_stops_the_writer(writer: RingWriter) -> None:
    first, second = (RingReader(ends) for ends in writer.ends)
    writer.write(b"a" * 28)
    writer.write(b"b" * 28)
    assert read_all(first) == [b"a" * 28, b"b" * 28]
    with pytest.raises(RingStuck, match=r"taken nothing for 0\.05 s"):
        writer.write(b"c")
    assert second.read() == b"a" * 28
    writer.write(b"c")  # positive control: the ring has room again
    assert read_all(second) == [b"b" * 28, b"c"]
    assert read_all(first) == [b"c"]


def test_nothing_written_is_nothing_read(writer: RingWriter) -> None:
    reader = RingReader(writer.ends[0])
    assert reader.read() is None
    assert not select.select([reader], [], [], 0)[0]
    writer.write(b"")
    assert select.select([reader], [], [], 0)[0] == [reader], "the control: an empty one is one"
    assert read_all(reader) == [b""]


def test_another_process_reads_what_it_inherits(writer: RingWriter) -> None:
    ends = writer.ends[1]
    writer.write(b"x" * 20)
    code = (
        "import sys; from engine.ranks.ring import *; "
        "r = RingReader(ReaderEnds(*map(int, sys.argv[1:]))); sys.stdout.buffer.write(r.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, ends.descriptors), str(ends.num_bytes)],
        pass_fds=ends.descriptors,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"x" * 20
