"""The start of the engine's process. Its only argument is the config as JSON."""

from __future__ import annotations

import logging

import msgspec

from engine.config import EngineConfig
from engine.link.tcp.open_connections import allow_open_files
from engine.system.core_dumps import prevent_core_dumps
from engine.system.line_writer import log_lines

_log = logging.getLogger(__name__)


def begun_with(arguments: list[str]) -> EngineConfig | None:
    """Set up the process `python -m engine CONFIG`, and return the config from its argument.

    Without an argument, log the usage and return None.
    """
    prevent_core_dumps()
    allow_open_files()
    log_lines("%(levelname)s %(message)s")
    try:
        [settings] = arguments
        return msgspec.json.decode(settings, type=EngineConfig)
    except (ValueError, msgspec.DecodeError) as error:
        usage = "usage: python -m engine CONFIG, which is EngineConfig as JSON"
        _log.error("%s: %s", usage, error)
        return None
