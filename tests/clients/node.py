"""Clients that run in node: their packages, and how to start them.

The packages are installed in the directory `CLIENTS_NODE_MODULES`. Only loopback addresses can be
reached: requests to other addresses go to a proxy that does not exist.
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
    """Return the directory of an installed package; skip the test if the package or node is
    missing.
    """
    where = os.environ.get("CLIENTS_NODE_MODULES")
    if where is None or shutil.which("node") is None:
        pytest.skip("node, or CLIENTS_NODE_MODULES, is absent")
    found = Path(where) / "node_modules" / name
    if not found.is_dir():
        pytest.skip(f"{name} is not installed in {where}")
    return found


def run(command: Sequence[str], home: Path, environment: Mapping[str, str]) -> str:
    """Run `command` in an environment without the caller's variables; return its output."""
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        command,
        cwd=home,
        env={
            # some packages need a newer node than the first one in PATH
            "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}",
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
