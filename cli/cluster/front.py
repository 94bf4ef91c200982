"""The gateway that `ratoon cluster up` runs beside itself, set up by cluster.yaml.

    started --ends--> started again at the next check
       |`--cannot start (status 2)--> the command ends
       `--the command ends--> open streams may finish

The gateway reads its settings from a file that only the gateway's user can read, as the file may
contain the admin key.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cli.cluster.settings import ClusterSettings
from cli.echo import echo
from cli.errors import ServingFailed
from cli.options.config_file import PREFIX
from cli.serving.installation import check_port_free
from cli.supervision import parent_death
from cli.supervision.child import hub_tokens, python_environment
from gateway.config import GatewayConfig
from gateway.startup.main import EXIT_CANNOT_START

_RATOON = "from cli.main import main; main()"

Look = Callable[[], None]


@contextmanager
def gateway_beside(settings: ClusterSettings) -> Iterator[Look]:
    """Run the gateway, if configured, and yield a function that restarts it if it has ended.

    The caller calls the yielded function regularly. The yielded function raises ServingFailed if
    the gateway cannot start.
    """
    if settings.gateway is None:
        yield lambda: None
        return
    with tempfile.TemporaryDirectory(prefix="ratoon-gateway-") as directory:
        file = Path(directory) / "gateway.yaml"
        # the gateway reads YAML, and JSON is valid YAML
        file.write_bytes(msgspec.json.encode(gateway_settings(settings)))
        running = _Gateway(file)
        try:
            yield running.look
        finally:
            running.stop()


def check_gateway_ports(settings: ClusterSettings) -> None:
    """Raise BadSetting if a port of the gateway is in use, since the gateway could never start."""
    if settings.gateway is None:
        return
    defaults = {one.name: one.default for one in msgspec.structs.fields(GatewayConfig)}
    given = {**defaults, **settings.gateway}
    for prefix in ("", "admin_"):
        host, port = f"{prefix}host", f"{prefix}port"
        if given[port] is not None:
            check_port_free(f"gateway.{port}", f"gateway.{host}", given[host], given[port])


def gateway_settings(settings: ClusterSettings) -> dict[str, Any]:
    """Compose the gateway's settings from its section of cluster.yaml and the state's location."""
    shared = settings.shared
    ours = {
        "model": settings.model,
        "data_dir": settings.data_dir,
        "link_key_file": settings.link_key_file,
        "redis_url": shared.redis_url,
        "redis_password_file": shared.redis_password_file,
    }
    given = {name: value for name, value in ours.items() if value is not None}
    return {**(settings.gateway or {}), **given, "find_engines": True}


class _Gateway:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._process = self._started()

    def look(self) -> None:
        status = self._process.poll()
        if status is None:
            return
        if status == EXIT_CANNOT_START:
            raise ServingFailed("the gateway cannot start; why is above")
        echo(f"gateway: ended with status {status}, started again")
        self._process = self._started()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        tied = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())]
        command = [sys.executable, "-P", "-c", _RATOON, "gateway", "--config", str(self._file)]
        given = python_environment() | hub_tokens()
        environment = {name: one for name, one in given.items() if not name.startswith(PREFIX)}
        return subprocess.Popen([*tied, *command], env=environment, start_new_session=True)
