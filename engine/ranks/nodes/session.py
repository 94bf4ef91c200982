"""The ranks of a node, from the message that has them started to the end of them all.

Each has a ring and a socket, as if rank 0 were here. One that ends, ends the others; so does the
end of the connection to rank 0.

Knows: processes, and where messages go. Does not know: how the connection was made (`joining`), or
what messages say.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress

import zmq
from msgspec.structs import replace

from engine.process import EXIT_STOPPED
from engine.ranks.messages import ENCODER, Start
from engine.ranks.nodes.connection import NodeConnection
from engine.ranks.nodes.wire import LinkBroken, RankCommand, RankEnded, RankReport, ToNode
from engine.ranks.process import END_S, RankProcess
from engine.ranks.ring import RingStuck, RingWriter
from storage.disk.wire import Channel, WireBroken

_log = logging.getLogger(__name__)


class _RankLeft(Exception):
    """A rank has ended while another one was told something."""


class NodeSession:
    """The ranks of one engine that are on this machine. One owner thread."""

    def __init__(self, connection: NodeConnection, starts: Sequence[Start]) -> None:
        """Start the ranks, each as its first message says. Raises OSError."""
        self._connection = connection
        self._ring = RingWriter(len(starts))
        self._ranks: list[RankProcess] = []
        self._channels: dict[int, Channel] = {}
        self._told: deque[ToNode] = deque()  # by rank 0, and not yet told the ranks
        self._poller = zmq.Poller()
        for readable in connection.readables:
            self._poller.register(readable, zmq.POLLIN)
        for start, ends in zip(starts, self._ring.ends, strict=True):
            rank = RankProcess(start.rank, ends.descriptors)
            self._ranks.append(rank)
            channel = self._channels[rank.rank] = Channel(rank.socket)
            with suppress(WireBroken):  # it is gone already, which its process tells
                channel.send(ENCODER.encode(replace(start, ring=ends)))
            self._poller.register(channel.socket, zmq.POLLIN)
            self._poller.register(rank.descriptor, zmq.POLLIN)

    def run(self) -> None:
        """Until all have ended as they were told to, or one has not. Raises LinkBroken."""
        left = list(self._ranks)
        while left:
            ready = dict(self._poller.poll())
            self._look()
            self._tell_all()
            for rank in left[:]:
                if self._channels[rank.rank].socket.fileno() in ready:
                    self._pass_on(rank)
                if rank.descriptor in ready:
                    left.remove(rank)
                    if not self._has_ended_well(rank):
                        return

    def close(self) -> None:
        """Kill whatever is left."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.finish(time.monotonic() + END_S)
        self._ring.close()

    def _look(self) -> None:
        self._told.extend(self._connection.receive())

    def _tell_all(self) -> None:
        """Tell the ranks what has come, unless one ends meanwhile: then all do."""
        while self._told:
            message = self._told.popleft()
            if isinstance(message, RankCommand):
                try:
                    self._ring.write(message.content, self._look_at_all)
                except RingStuck as error:
                    raise LinkBroken(str(error)) from error
                except _RankLeft:
                    self._told.clear()

    def _look_at_all(self) -> None:
        """While a rank takes nothing: another one may end, or the machine of rank 0."""
        self._look()
        if any(rank.status is not None for rank in self._ranks):
            raise _RankLeft

    def _pass_on(self, rank: RankProcess) -> None:
        """What it has reported, until there is no more, or it is gone."""
        channel = self._channels[rank.rank]
        try:
            while (content := channel.receive(socket.MSG_DONTWAIT)) is not None:
                self._connection.send(RankReport(rank.rank, bytes(content)))
        except WireBroken:
            self._poller.unregister(channel.socket)  # its end is seen by its process

    def _has_ended_well(self, rank: RankProcess) -> bool:
        self._poller.unregister(rank.descriptor)
        status = rank.status
        assert status is not None, "it has ended"
        if status != EXIT_STOPPED:
            _log.error("%s has ended with status %d, so the engine ends", rank.name, status)
        self._connection.send(RankEnded(rank.rank, status))
        return status == EXIT_STOPPED


def run_session(connection: NodeConnection, starts: Sequence[Start]) -> None:
    """Run ranks to their end. Raises LinkBroken, OSError."""
    with closing(NodeSession(connection, starts)) as session:
        session.run()
