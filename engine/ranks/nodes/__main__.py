"""`python -m engine.ranks.nodes CONFIG`: a node; CONFIG is a `NodeConfig` as JSON."""

from __future__ import annotations

import logging
import sys

from engine.config_argument import begun_with
from engine.link.tcp.curve import BadLinkKey
from engine.process import EXIT_BROKEN, EXIT_CANNOT_START
from engine.ranks.nodes.config import NodeConfig
from engine.ranks.nodes.joining import JoinRefused, serve

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve one engine after the other, until a signal ends this process and its ranks.

    Returns the status with which it ends by itself.
    """
    config = begun_with(arguments, NodeConfig, "engine.ranks.nodes")
    if config is None:
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
