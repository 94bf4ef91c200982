"""The key of a TCP link between gateway and engine: its file, and its creation.

The engine creates the key at its first start. The operator copies it to the gateways' machines.

`engine/link/tcp/curve.py` uses the key.
"""

from pathlib import Path

import zmq

from cli.errors import BadSetting
from engine.link.address import is_tcp
from engine.link.tcp.curve import BadLinkKey, read_link_key
from gateway.state.private_file import PrivateFileError, create_private

LINK_KEY_NAME = "link.key"
FLAG = "--link-key-file"


def link_key_file(socket: str, given: Path | None, data_dir: Path, *, make: bool) -> str | None:
    """Find the key file for an engine at `socket`, or return None for a Unix socket.

    The file is `given` or in `data_dir`. With `make`, a missing file is created. Raises BadSetting
    if the file holds no key.
    """
    if not is_tcp(socket):
        if given is not None:
            raise BadSetting(FLAG, f"{socket} is a Unix socket: only tcp://HOST:PORT has a key")
        return None
    path = (given or data_dir / LINK_KEY_NAME).absolute()
    if make:
        _make(path)
    return _checked(path)


def key_of_found_engines(given: Path | None, data_dir: Path) -> str:
    """Return the path of the key file for engines that a gateway may find over TCP.

    The file in `data_dir` need not exist yet: the first engine creates it, and engines on Unix
    sockets need none. Raises BadSetting if a file exists but holds no key.
    """
    path = (given or data_dir / LINK_KEY_NAME).absolute()
    return _checked(path) if given is not None or path.exists() else str(path)


def _checked(path: Path) -> str:
    try:
        read_link_key(path)
    except BadLinkKey as error:
        raise BadSetting(FLAG, f"{error}; it is the engine's, to be copied from there") from error
    return str(path)


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _, secret = zmq.curve_keypair()
    try:
        create_private(path, secret + b"\n")
    except (PrivateFileError, OSError) as error:
        raise BadSetting(FLAG, str(error)) from error
