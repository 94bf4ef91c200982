"""Clients that run in node: where their packages are, and how one is started.

`CLIENTS_NODE_MODULES` names the directory in which `npm install` was run. Nothing but the loopback
is reached: a proxy that nobody is behind stands before all other addresses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

TIMEOUT_S = 120


def package(name: str) -> Path:
    """The directory of an installed package; skips where it, or node, is absent."""
    where = os.environ.get("CLIENTS_NODE_MODULES")
    if where is None or shutil.which("node") is None:
        pytest.skip("node, or CLIENTS_NODE_MODULES, is absent")
    found = Path(where) / "node_modules" / name
    if not found.is_dir():
        pytest.skip(f"{name} is not installed in {where}")
    return found


def run(command: Sequence[str], home: Path, environment: Mapping[str, str]) -> str:
    """Return the output of `command`, run with an environment that has nothing of the caller's."""
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        command,
        cwd=home,
        env={
            "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}",  # some want a newer node
            "HOME": str(home),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
