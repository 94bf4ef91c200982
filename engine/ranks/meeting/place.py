"""Where the ranks of an engine meet, as rank 0 opens it: a file, or a store over TCP.

A file has no name, and ranks inherit it. Ranks of several machines meet at a store of torch's in
this process, which listens on the address that the operator names and on no other. It asks nobody
for a key, as little as gloo and NCCL do: what is exchanged is the ranks' addresses.

Knows: how it is opened. Does not know: who comes (`groups`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed

from engine.config import EngineConfig
from engine.link.address import host_and_port
from engine.models.errors import WrongSetting
from engine.ranks.collectives import LOOPBACK

c10d: Any = torch.distributed  # whose stores are not all in its types


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """As `Meeting` has it; `descriptors` are inherited by ranks of this machine."""

    path: str
    host: str = LOOPBACK
    descriptors: tuple[int, ...] = ()


@contextmanager
def meeting_place(config: EngineConfig) -> Iterator[MeetingPlace]:
    """Open as long as ranks may come. Raises WrongSetting for an address that is not of here."""
    if config.nnodes == 1:
        file = os.memfd_create("ratoon-meeting", os.MFD_CLOEXEC)
        try:
            yield MeetingPlace(f"/proc/self/fd/{file}", descriptors=(file,))
        finally:
            os.close(file)
        return
    assert config.node_address is not None, "several machines have an address to come to"
    host, _ = host_and_port(config.node_address)
    store = _listening(host)
    yield MeetingPlace(f"tcp://{host}:{store.port}", host.strip("[]"))


def _listening(host: str) -> Any:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host.strip("[]"), 0))
            listener.listen()
        except OSError as error:
            raise WrongSetting(f"node_address {host}: {error.strerror}") from error
        port: int = listener.getsockname()[1]
        return c10d.TCPStore(
            host.strip("[]"),
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
