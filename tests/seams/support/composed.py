"""The deployment of `docker-compose.yml` on a real Docker engine, for tests.

Knows: compose, containers, their processes. Does not know: what is tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.doubles.ports import free_port
from tests.doubles.waiting import wait_for

ROOT = Path(__file__).parents[3]
SERVICES = ("front", "gateway-1", "gateway-2", "engine", "redis")
BASE_IMAGES = ("python:3.11-slim-bookworm", "redis:7-bookworm")
START_S = 240.0
WANTED = "RATOON_TEST_COMPOSE"  # "built": with the images that are there, whatever is in them


def why_not() -> str | None:
    """Why nothing can be composed here; None when it can."""
    if WANTED not in os.environ:
        return f"takes minutes and a machine of its own; set {WANTED}=1 to try the deployment"
    if shutil.which("docker") is None:
        return "there is no docker here"
    if run("docker", "info").returncode:
        return "no Docker engine answers"
    if compose_command() is None:
        return "there is no compose here"
    for image in BASE_IMAGES:
        if run("docker", "image", "inspect", image).returncode:
            return f"the base image {image} is not here; pull it first"
    return None


def run(*command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command's exit status and output."""
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


def compose_command() -> tuple[str, ...] | None:
    """Compose as a plugin or as a program of its own."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and not run(*command, "version").returncode:
            return command
    return None


class Composed:
    """A running deployment with a project name of its own."""

    def __init__(self, directory: Path) -> None:
        self._project = f"ratoon-test-{os.getpid()}"
        ports = free_port(), free_port()
        self.url, self.admin_url = (f"http://127.0.0.1:{port}" for port in ports)
        self._secrets = directory / "secrets"
        (directory / "models").mkdir()
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RATOON")},
            "RATOON_BUILD_NETWORK": "host",
            "RATOON_SECRETS": str(self._secrets),
            "RATOON_MODELS": str(directory / "models"),
            "RATOON_PUBLISH": f"127.0.0.1:{ports[0]}",
            "RATOON_PUBLISH_ADMIN": f"127.0.0.1:{ports[1]}",
            **_torch(),
        }

    def compose(self, *arguments: str) -> str:
        """What compose printed; RuntimeError when it failed."""
        command = compose_command()
        assert command is not None
        done = run(*command, "-p", self._project, *arguments, env=self._env)
        if done.returncode:
            raise RuntimeError(f"compose {arguments[0]}: {done.stderr[-2000:]}")
        return done.stdout

    def make_secrets(self) -> None:
        """As the operator does."""
        assert not run("sh", "deploy/secrets.sh", str(self._secrets)).returncode

    def secret(self, name: str) -> str:
        """One of the deployment's secrets."""
        return (self._secrets / name).read_text()

    def container(self, service: str) -> dict[str, Any]:
        """`docker inspect` of a service's container."""
        name = self.compose("ps", "-q", service).strip()
        found: dict[str, Any] = json.loads(run("docker", "inspect", name).stdout)[0]
        return found

    def pid(self, service: str) -> int:
        """The process of a service, as the host numbers it; 0 while there is none."""
        pid: int = self.container(service)["State"]["Pid"]
        return pid

    def kill(self, service: str) -> None:
        """End a service's process as a crash would; compose's own `kill` means to stop it.

        From a container that sees the host's processes: whoever may use Docker may do this.
        """
        command = ("run", "--rm", "--pid=host", "--user=0", "--entrypoint=sh")
        killed = run("docker", *command, "ratoon-front", "-c", f"kill -9 {self.pid(service)}")
        assert not killed.returncode, killed.stderr

    def wait_healthy(self, service: str, timeout_s: float = START_S) -> None:
        """Return when a service's own health check says yes."""
        wait_for(lambda: self.health(service) == "healthy", timeout_s)

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Return when gateways are reached by tenants and operator, and have an engine."""
        for url in (self.url, self.admin_url):
            wait_for(partial(_is_ready, url), timeout_s)

    def wait_successor(self, service: str, killed: int, timeout_s: float = 60.0) -> None:
        """Return when another process runs where `killed` ran."""
        wait_for(lambda: self.pid(service) not in (0, killed), timeout_s)

    def health(self, service: str) -> str:
        """What a service's own health check says, or why there is none."""
        state = self.container(service)["State"]
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _torch() -> dict[str, str]:
    """No index for torch beside the usual one where the base image brings its wheel along."""
    brings = run(
        "docker", "run", "--rm", BASE_IMAGES[0], "pip", "config", "get", "global.find-links"
    )
    return {"RATOON_TORCH_INDEX": ""} if not brings.returncode else {}


@contextmanager
def composed(directory: Path) -> Iterator[Composed]:
    """Build and start everything, and leave nothing but the images."""
    deployment = Composed(directory)
    deployment.make_secrets()
    if os.environ[WANTED] != "built":
        # By tag: the images that are here need not be those that the Dockerfile names by digest.
        python, redis = BASE_IMAGES
        arguments = (f"PYTHON_IMAGE={python}", f"REDIS_IMAGE={redis}")
        deployment.compose("build", *(f"--build-arg={argument}" for argument in arguments))
    try:
        deployment.compose("up", "--detach")
        deployment.wait_ready()
        yield deployment
    finally:
        deployment.compose("down", "--volumes", "--timeout", "5")


def soon(attempts: int, pause_s: float) -> Iterator[int]:
    """Numbers, with a pause between them."""
    for number in range(attempts):
        if number:
            time.sleep(pause_s)
        yield number
