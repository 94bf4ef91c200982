"""Two ranks without processes. They report what a test sets, and record rank 0's messages."""

from __future__ import annotations

import socket

from engine.ranks.leader import OtherRanks
from engine.ranks.messages import COMMANDS, ENCODER, RankMessage
from engine.ranks.ring import RingReader, RingWriter
from storage.disk.wire import Channel


class TwoRanks:
    """The ranks 1 and 2 as rank 0 sees them, in `others`."""

    def __init__(self) -> None:
        ring = RingWriter(2)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.others = OtherRanks(ring, [Channel(ours) for ours, _ in pairs])
        self.ends = [theirs for _, theirs in pairs]
        self.reader = RingReader(ring.ends[1])

    def report(self, rank: int, *messages: RankMessage) -> None:
        for message in messages:
            self.ends[rank - 1].send(ENCODER.encode(message))

    def told(self) -> list[RankMessage]:
        """Return the messages to rank 2 since the last call."""
        return [COMMANDS.decode(content) for content in iter(self.reader.read, None)]

    def close(self) -> None:
        self.reader.close()
        self.others.close()
        for end in self.ends:
            end.close()
