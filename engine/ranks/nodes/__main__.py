"""`python -m engine.ranks.nodes CONFIG`: a node; CONFIG is a `NodeConfig` as JSON."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import PackageNotFoundError

from engine.config_argument import begun_with
from engine.link.tcp.curve import BadLinkKey
from engine.process import EXIT_BROKEN, EXIT_CANNOT_START
from engine.ranks.nodes.config import NodeConfig
from engine.ranks.nodes.joining import JoinRefused, serve
from engine.ranks.nodes.wire import versions

_log = logging.getLogger(__name__)
_NOT_INSTALLED = "this node cannot serve: %s is not installed; install the version of the engine's"


def main(arguments: list[str]) -> int:
    """Serve one engine after the other, until a signal ends this process and its ranks.

    Returns the status with which it ends by itself.
    """
    config = begun_with(arguments, NodeConfig, "engine.ranks.nodes")
    if config is None:
        return EXIT_CANNOT_START
    try:
        versions()
    except PackageNotFoundError as error:  # a gateway's machine, for one, has no torch
        _log.error(_NOT_INSTALLED, error.name)
        return EXIT_CANNOT_START
    _log.info("node %d: waiting for an engine at %s", config.node_rank, config.join)
    try:
        serve(config)
    except (JoinRefused, BadLinkKey) as error:
        return _ended(error, EXIT_CANNOT_START)
    except OSError as error:  # of this machine as it is now: another start may do
        return _ended(error, EXIT_BROKEN)


def _ended(error: Exception, status: int) -> int:
    _log.error("this node cannot serve: %s", error)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)  # its ranks die with it
