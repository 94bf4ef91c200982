"""The network interface that has an address, which is how NCCL is told where to listen.

NCCL takes it from the environment alone, and otherwise any interface.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct

NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR: of struct ifreq, the IPv4 address is in bytes 20 to 24
_REQUEST = struct.Struct("16s24x")

_log = logging.getLogger(__name__)


def keep_nccl_on(host: str) -> None:
    """Have NCCL use the interface of `host` in this process, unless the operator has named one."""
    if NCCL_INTERFACE in os.environ:
        return
    name = interface_of(host)
    if name is None:
        _log.warning("no interface has %s, so NCCL chooses: %s says which", host, NCCL_INTERFACE)
        return
    os.environ[NCCL_INTERFACE] = f"={name}"  # that one, and none that begins with its name


def interface_of(host: str) -> str | None:
    """The interface whose IPv4 address `host` is, or is the name of; None: none of this machine."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if _address_of(name) == address), None)


def _address_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(any_socket, _GET_ADDRESS, _REQUEST.pack(name.encode()))
        except OSError:
            return None  # it has none
    return socket.inet_ntoa(found[20:24])
