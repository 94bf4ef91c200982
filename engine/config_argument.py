"""How a process of the engine begins: with a config as its one argument, in JSON.

Knows: limits of a process, its log, how a config is read. Does not know: what a config means.
"""

from __future__ import annotations

import logging
import sys
from typing import TypeVar

import msgspec

from engine.core_dumps import prevent_core_dumps
from engine.link.tcp.open_connections import allow_open_files

C = TypeVar("C", bound=msgspec.Struct)

_log = logging.getLogger(__name__)


def begun_with(arguments: list[str], kind: type[C], module: str) -> C | None:
    """Set up this process, `python -m MODULE CONFIG`; the config that it is given.

    None where it is given none: the log says how it is called.
    """
    prevent_core_dumps()
    allow_open_files()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        [settings] = arguments
        return msgspec.json.decode(settings, type=kind)
    except (ValueError, msgspec.DecodeError) as error:
        usage = f"usage: python -m {module} CONFIG, which is {kind.__name__} as JSON"
        _log.error("%s: %s", usage, error)
        return None
