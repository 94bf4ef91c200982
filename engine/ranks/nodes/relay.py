"""`python -m engine.ranks.nodes.relay PARENT RANK:FD ...`: stands for ranks on other machines.

    ring of rank 0 --------> here --- TCP ---> node --- ring of its own ---> rank k
    socket of rank k <------ here <-- TCP ---- node <-- socket of its own -- rank k

To rank 0 it is a process like a rank's: it reads the ring, reports on sockets, and ends, with the
status of the rank that has ended, once one of them is gone or its machine does not answer. It is a
process and no thread, since the engine's Python would hold it up.

    nodes come, all of them | each is told which ranks to run | messages, until an end

Knows: whose messages go where. Does not know: what they say, or what comes after an end.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import zmq

from engine.config import EngineConfig
from engine.link.address import address
from engine.link.tcp.curve import BadLinkKey, read_link_key
from engine.models.grid import RankGrid
from engine.process import EXIT_BROKEN, EXIT_CANNOT_START, EXIT_STOPPED
from engine.ranks.child import tie_to
from engine.ranks.messages import ENCODER, STARTS, Joined, NotStarted, RankMessage, Start
from engine.ranks.nodes.listener import BEATS, NodeListener, OtherVersion, open_listener
from engine.ranks.nodes.wire import FromNode, LinkBroken, RankCommand, RankEnded, RankReport, Run
from engine.ranks.ring import RingReader
from storage.disk.wire import Channel, WireBroken

_log = logging.getLogger(__name__)


class NotCome(Exception):
    """A node that has not come in time."""


class Relay:
    """Between rank 0 and other machines, whose ranks have `channels`. One owner thread."""

    def __init__(
        self,
        config: EngineConfig,
        listener: NodeListener,
        ring: RingReader,
        channels: Mapping[int, Channel],
    ) -> None:
        self._config = config
        self._grid = RankGrid(config.tensor_parallel, config.pipeline_parallel, config.nnodes)
        self._listener = listener
        self._ring = ring
        self._channels = channels
        self._running = set(channels)
        self._poller = zmq.Poller()
        for readable in (
            listener.socket,
            ring.fileno(),
            *(one.socket for one in channels.values()),
        ):
            self._poller.register(readable, zmq.POLLIN)

    def await_nodes(self) -> None:
        """Wait until all have come. Raises NotCome, OtherVersion, LinkBroken, WireBroken."""
        config = self._config
        _log.info("waiting for node %s at %s", _listed(self._listener.missing), config.node_address)
        give_up = time.monotonic() + config.node_wait_s
        while self._listener.missing:
            if time.monotonic() > give_up:
                raise NotCome(
                    f"node {_listed(self._listener.missing)} has not come to {config.node_address} "
                    f"within {config.node_wait_s:g} s"
                )
            self._wait()
            self._listener.receive()
            self._listener.look()
        self._listener.shut()

    def start(self, starts: Sequence[Start]) -> None:
        """Have every node run its ranks. Raises LinkBroken, WireBroken."""
        for node in range(1, self._grid.nodes):
            ranks = self._grid.ranks_of(node)
            self._listener.send(node, Run(tuple(one for one in starts if one.rank in ranks)))
        for channel in self._channels.values():
            _report(channel, Joined())

    def run(self) -> int:
        """Carry messages to the end; its status. Raises LinkBroken, WireBroken."""
        looked = time.monotonic()
        while self._running:
            while (content := self._ring.read()) is not None:
                for node in range(1, self._grid.nodes):
                    self._listener.send(node, RankCommand(content))
            for node, message in self._listener.receive():
                status = self._take(node, message)
                if status != EXIT_STOPPED:
                    return status
            if time.monotonic() - looked > self._beat_s:
                looked = time.monotonic()
                if gone := self._listener.look():
                    raise LinkBroken(f"node {gone[0]} is gone")
            self._wait()
        return EXIT_STOPPED

    @property
    def _beat_s(self) -> float:
        return self._config.node_silence_s / BEATS

    def _take(self, node: int, message: FromNode) -> int:
        """Pass it on; the status of a rank that has ended, else EXIT_STOPPED. Raises LinkBroken."""
        ranks = self._grid.ranks_of(node)
        match message:
            case RankReport(rank, content) if rank in ranks:
                self._channels[rank].send(content)
            case RankEnded(rank, status) if rank in ranks:
                self._running.discard(rank)
                return status
            case _:
                raise LinkBroken(f"node {node} says what it has no part in")
        return EXIT_STOPPED

    def _wait(self) -> None:
        """Until something has come, or a beat is due. Raises WireBroken where rank 0 is gone."""
        ready = dict(self._poller.poll(int(self._beat_s * 1e3)))
        for channel in self._channels.values():
            if channel.socket.fileno() in ready:  # rank 0 sends nothing here any more
                channel.receive(socket.MSG_DONTWAIT)


def serve(channels: Mapping[int, Channel]) -> int:
    """Stand for the ranks that these channels are of; the exit status."""
    try:
        starts = [_first_message(channel) for channel in channels.values()]
        return _serve(starts, channels)
    except (NotCome, OtherVersion, BadLinkKey, OSError) as error:
        for channel in channels.values():
            _report(channel, NotStarted(str(error), is_refused=False))
        return EXIT_CANNOT_START
    except LinkBroken as error:
        _log.error("%s", error)
        return EXIT_BROKEN
    except WireBroken:
        return EXIT_BROKEN  # rank 0 is gone, and all that it has started ends


def _serve(starts: Sequence[Start], channels: Mapping[int, Channel]) -> int:
    config = starts[0].config
    assert config.node_address is not None, "several machines have an address to come to"
    assert config.node_key_file is not None, "and a key"
    key = read_link_key(Path(config.node_key_file))
    endpoint = address(config.node_address).messages
    with ExitStack() as opened:
        listener = opened.enter_context(
            open_listener(endpoint, key, config.nnodes, config.node_silence_s)
        )
        ring = opened.enter_context(closing(RingReader(starts[0].ring)))
        relay = Relay(config, listener, ring, channels)
        relay.await_nodes()
        relay.start(starts)
        return relay.run()


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _first_message(channel: Channel) -> Start:
    content = channel.receive()
    assert content is not None, "it was waited for"
    return STARTS.decode(content)


def _report(channel: Channel, message: RankMessage) -> None:
    channel.send(ENCODER.encode(message))


def main(arguments: Sequence[str]) -> int:
    """Relay for the process with the id PARENT, which is rank 0, and die with it."""
    parent, *places = arguments
    if not tie_to(int(parent), "relay"):
        return EXIT_BROKEN
    ranks = {int(rank): int(end) for rank, _, end in (one.partition(":") for one in places)}
    with ExitStack() as opened:
        ends = {
            rank: opened.enter_context(socket.socket(fileno=end)) for rank, end in ranks.items()
        }
        return serve({rank: Channel(end) for rank, end in ends.items()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
