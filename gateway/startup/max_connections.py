"""The maximum number of connections that a process may have, by its limit of open files.

A process without a free file descriptor can neither accept nor refuse a connection. The connection
then stays in the kernel's queue while its client waits. The process cannot open its own files
either. Connections are therefore refused while there still are descriptors.
"""

import resource
import sys

from gateway.config import GatewayConfig
from gateway.startup.cannot_start import CannotStart

# Without connections 32 files are open, 44 in a worker. The rest is for new links to the engine,
# for files that are open for a moment, and for connections about to be refused.
_OWN = 96
# number of files for Redis: `gateway.state.redis` has up to 66 connections, and some for changes
_REDIS = 72
# number of connections to the operator's port, usable while the tenants' port is full
OPERATOR = 32
_LEAST = 16


def max_connections(config: GatewayConfig, open_files: int) -> int:
    """Return the maximum number of connections to the tenants' port.

    The result is the number that `config` asks for, or the number that fits. `open_files` is the
    process's limit of open files. Raises CannotStart if the limit is too low.
    """
    room = open_files - _OWN
    room -= _REDIS if config.redis_url is not None else 0
    room -= OPERATOR if config.admin_port is not None else 0
    wanted = config.bounds.max_connections
    if room < (wanted or _LEAST):
        raise CannotStart(
            f"a limit of {open_files} open files (ulimit -n) has room for {max(0, room)} "
            f"connections, and {wanted or _LEAST} are needed (max_connections)"
        )
    return wanted or room


def open_files_limit() -> int:
    """Return how many files this process may have open at once."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
