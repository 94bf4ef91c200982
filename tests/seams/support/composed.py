"""The deployment of `docker-compose.yml` on a real Docker engine, for tests."""

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
WANTED = "RATOON_TEST_COMPOSE"  # the value "built" means: use the existing images without a build


def why_not() -> str | None:
    """Return why the deployment cannot run here, or None if it can."""
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
    """Run a command; return its exit status and output."""
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


def compose_command() -> tuple[str, ...] | None:
    """Return the command of compose: a plugin of Docker, or a separate program."""
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
        """Run compose; return its output. Raises RuntimeError if it fails."""
        command = compose_command()
        assert command is not None
        done = run(*command, "-p", self._project, *arguments, env=self._env)
        if done.returncode:
            raise RuntimeError(f"compose {arguments[0]}: {done.stderr[-2000:]}")
        return done.stdout

    def make_secrets(self) -> None:
        """Make the secrets by the command that operators use."""
        assert not run("sh", "deploy/secrets.sh", str(self._secrets)).returncode

    def secret(self, name: str) -> str:
        """Return one of the deployment's secrets."""
        return (self._secrets / name).read_text()

    def container(self, service: str) -> dict[str, Any]:
        """Return `docker inspect` of a service's container."""
        name = self.compose("ps", "-q", service).strip()
        found: dict[str, Any] = json.loads(run("docker", "inspect", name).stdout)[0]
        return found

    def pid(self, service: str) -> int:
        """Return the host's process id of a service; 0 while there is none."""
        pid: int = self.container(service)["State"]["Pid"]
        return pid

    def kill(self, service: str) -> None:
        """Kill a service's process, after which Docker restarts it (not after compose's `kill`).

        A container that sees the host's processes sends the signal, so that the user needs no right
        but Docker's.
        """
        command = ("run", "--rm", "--pid=host", "--user=0", "--entrypoint=sh")
        killed = run("docker", *command, "ratoon-front", "-c", f"kill -9 {self.pid(service)}")
        assert not killed.returncode, killed.stderr

    def wait_healthy(self, service: str, timeout_s: float = START_S) -> None:
        """Wait until a service's own health check succeeds."""
        wait_for(lambda: self.health(service) == "healthy", timeout_s)

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until tenants and operator reach gateways, and the gateways have an engine."""
        for url in (self.url, self.admin_url):
            wait_for(partial(_is_ready, url), timeout_s)

    def wait_successor(self, service: str, killed: int, timeout_s: float = 60.0) -> None:
        """Wait until another process runs in place of `killed`."""
        wait_for(lambda: self.pid(service) not in (0, killed), timeout_s)

    def health(self, service: str) -> str:
        """Return the result of a service's own health check, or its state if it is not running."""
        state = self.container(service)["State"]
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _torch() -> dict[str, str]:
    """Return settings that leave out torch's own index if the base image has a wheel of torch."""
    brings = run(
        "docker", "run", "--rm", BASE_IMAGES[0], "pip", "config", "get", "global.find-links"
    )
    return {"RATOON_TORCH_INDEX": ""} if not brings.returncode else {}


@contextmanager
def composed(directory: Path) -> Iterator[Composed]:
    """Build and start the deployment; remove all but the images at the end."""
    deployment = Composed(directory)
    deployment.make_secrets()
    if os.environ[WANTED] != "built":
        # Base images are named by tag, because local images may not have the Dockerfile's digests.
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
    """Yield the numbers of up to `attempts` attempts, with a pause between them."""
    for number in range(attempts):
        if number:
            time.sleep(pause_s)
        yield number
