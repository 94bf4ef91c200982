"""A node's process: it comes to rank 0's machine, runs ranks for an engine, and comes again.

    waiting for rank 0 --Run--> ranks run --any end--> waiting for rank 0
         `--refused for good--> ends, with status 2; with 1 where this machine fails it

So an engine that starts again finds its other machines without anybody's doing. It never gives up:
whether an engine comes is not known here.

Knows: the order, and what is this machine's own. Does not know: sockets, or processes.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from errno import EINVAL
from pathlib import Path
from typing import NoReturn

import zmq
from msgspec.structs import replace

from engine.link.address import TCP, address, host_and_port, is_tcp
from engine.link.tcp.curve import LinkKey, Socket, read_link_key
from engine.ranks.messages import Start
from engine.ranks.nodes.config import NodeConfig
from engine.ranks.nodes.connection import GONE, NodeConnection
from engine.ranks.nodes.session import run_session
from engine.ranks.nodes.wire import Join, LinkBroken, Refused, Run, versions

PAUSE_S = 0.5  # between attempts

_log = logging.getLogger(__name__)


class JoinRefused(Exception):
    """Rank 0's machine will never let this node in."""


def serve(config: NodeConfig) -> NoReturn:
    """Run ranks for whichever engine is at the address. Raises JoinRefused, BadLinkKey, OSError."""
    key = read_link_key(Path(config.key_file))
    host = (config.host or reached_by(config.join)).strip("[]")
    check_own(host)
    context: zmq.Context[Socket] = zmq.Context()
    try:
        _serve(context, config, key, host)
    finally:
        context.destroy(linger=0)


def _serve(context: zmq.Context[Socket], config: NodeConfig, key: LinkKey, host: str) -> NoReturn:
    said = ""
    while True:
        try:
            with closing(_connection(context, config, key)) as connection:
                starts = _joined(connection, config)
                ranks = ", ".join(str(one.rank) for one in starts)
                _log.info("an engine has come: rank %s is started", ranks)
                said = ""
                run_session(connection, [localised(one, config, host) for one in starts])
                _log.info("the engine has ended; waiting for the next at %s", config.join)
                said = GONE  # as is only natural now
        except LinkBroken as error:
            if said != str(error):
                _log.warning("%s; waiting for %s", error, config.join)
                said = str(error)
        time.sleep(PAUSE_S)


def localised(start: Start, config: NodeConfig, host: str) -> Start:
    """The start with what is this machine's own; an IPv6 `host` without brackets."""
    given = start.config
    own = replace(
        given,
        model_dir=config.model_dir,
        disk_cache_dir=config.disk_cache_dir,
        host_memory_bytes=None,
        link_key_file=None if given.link_key_file is None else config.key_file,
        exchange=_exchange_address(given.exchange, host),
    )
    return replace(start, config=own, host=host)


def _exchange_address(exchange: str | None, host: str) -> str | None:
    """Where this machine's ranks are asked for blocks; nowhere, if rank 0 is by a path."""
    if exchange is None or not is_tcp(exchange):
        return None
    named = f"[{host}]" if ":" in host else host
    return f"{TCP}{named}:{exchange.rpartition(':')[2]}"


def reached_by(place: str) -> str:
    """The address of this machine from which `place` is reached. Raises OSError."""
    host, port = host_and_port(place)
    host = host.strip("[]")
    try:
        family, kind, *_, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        raise OSError(error.errno, f"join {host}: {error.strerror}") from error
    except UnicodeError as error:  # a part of the name is empty, or too long
        raise OSError(EINVAL, f"join {host}: {error}") from error
    with socket.socket(family, kind) as probe:
        probe.connect(at)  # of a datagram socket: nothing is sent
        found: str = probe.getsockname()[0]
        return found


def check_own(host: str) -> None:
    """Raises OSError where gloo could not listen on `host`: it is no address of this machine."""
    try:
        family, kind, *_, at = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(at)
    except OSError as error:
        text = f"node_host {host}: {error.strerror}"
        raise OSError(error.errno, text) from error
    except UnicodeError as error:  # as in `reached_by`
        raise OSError(EINVAL, f"node_host {host}: {error}") from error


def _connection(context: zmq.Context[Socket], config: NodeConfig, key: LinkKey) -> NodeConnection:
    return NodeConnection(context, address(config.join).messages, key, config.silence_s)


def _joined(connection: NodeConnection, config: NodeConfig) -> tuple[Start, ...]:
    """Wait until there are ranks to run. Raises LinkBroken, JoinRefused."""
    connection.send(Join(config.node_rank, versions()))
    while True:
        zmq.select(list(connection.readables), [], [])
        for message in connection.receive():
            match message:
                case Run(starts):
                    return starts
                case Refused(text, True):
                    raise JoinRefused(text)
                case Refused(text):
                    raise LinkBroken(text)
