"""`python -m engine.ranks.nodes CONFIG`: a node; CONFIG is a `NodeConfig` as JSON."""

from __future__ import annotations

import logging
import sys

import msgspec

from engine.core_dumps import prevent_core_dumps
from engine.link.curve import BadLinkKey
from engine.link.open_connections import allow_open_files
from engine.process import EXIT_CANNOT_START
from engine.ranks.nodes.config import NodeConfig
from engine.ranks.nodes.joining import JoinRefused, serve

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve one engine after the other, until a signal ends this process and its ranks."""
    prevent_core_dumps()
    allow_open_files()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        [settings] = arguments
        config = msgspec.json.decode(settings, type=NodeConfig)
    except (ValueError, msgspec.DecodeError) as error:
        _log.error("usage: python -m engine.ranks.nodes CONFIG, a NodeConfig as JSON: %s", error)
        return EXIT_CANNOT_START
    _log.info("node %d: waiting for an engine at %s", config.node_rank, config.join)
    try:
        serve(config)
    except (JoinRefused, BadLinkKey, OSError) as error:
        _log.error("this node cannot serve: %s", error)
    return EXIT_CANNOT_START


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)  # its ranks die with it
