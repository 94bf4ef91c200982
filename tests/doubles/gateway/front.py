"""HAProxy with the deployment's own configuration, in front of a gateway on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for

CONFIGURATION = Path(__file__).parents[3] / "deploy" / "haproxy.cfg"
_RESOLVERS = re.compile(r"^resolvers docker\n(?: .*\n)+", re.MULTILINE)
_SERVER = re.compile(r"server (gateway-\d) gateway-\d:\d+")


@dataclass(frozen=True)
class Front:
    """The two ports of a running HAProxy."""

    port: int
    operator_port: int


def haproxy() -> str | None:
    """Return the path of HAProxy, if it is installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


def configured(front: Front, gateway_port: int, health_port: int, most: int) -> str:
    """Return the deployment's configuration, with fewer connections and without a name server."""
    text = _RESOLVERS.sub("", CONFIGURATION.read_text())
    text = text.replace("maxconn 20000", f"maxconn {most}")
    text = text.replace("resolvers docker init-addr none", "")
    text = text.replace("bind :8000", f"bind 127.0.0.1:{front.port}")
    text = text.replace("bind :8001", f"bind 127.0.0.1:{front.operator_port}")
    text = text.replace("127.0.0.1:8404", f"127.0.0.1:{health_port}")
    text, replaced = _SERVER.subn(rf"server \1 127.0.0.1:{gateway_port}", text)
    assert replaced == 4
    return text


@contextmanager
def running_front(directory: Path, gateway_port: int, most: int = 2000) -> Iterator[Front]:
    """Run HAProxy for up to `most` connections. Yield once HAProxy reaches the gateway."""
    front, health_port = Front(free_port(), free_port()), free_port()
    file = directory / "haproxy.cfg"
    file.write_text(configured(front, gateway_port, health_port, most))
    process = subprocess.Popen([haproxy() or "haproxy", "-db", "-f", str(file)])

    def is_up() -> bool:
        try:
            url = f"http://127.0.0.1:{front.port}/healthz"
            return process.poll() is not None or httpx.get(url).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(is_up, 20)
        assert process.poll() is None
        yield front
    finally:
        process.kill()
        process.wait()
