"""Command lines of the scripts in `children`, and a restart policy with short delays."""

import sys
from pathlib import Path

from cli.supervision.serving_state import ChildName, ChildPatience, Policy
from cli.supervision.watch import Probed
from gateway.processes.backoff import Backoff

CHILDREN = Path(__file__).parent / "children"


def script(name: str, *arguments: object) -> list[str]:
    """Return the command line of a script."""
    return [sys.executable, "-I", "-S", str(CHILDREN / name), *map(str, arguments)]


def fake_commands(
    directory: Path, *, deaths: int = 0, gateway: str = "", status: int = 7
) -> dict[ChildName, list[str]]:
    """Return commands of a gateway, and of an engine that first dies `deaths` times with status
    `status`.
    """
    return {
        "gateway": script("fake_gateway.py", directory, gateway),
        "engine": script("fake_engine.py", directory, deaths, status),
    }


def quick_policy() -> Policy:
    """Return a restart policy whose delays are milliseconds, not seconds."""
    return Policy(
        backoff=Backoff(first_delay_s=0.01, base_delay_s=0.01, max_delay_s=0.02),
        gateway=ChildPatience(stop_s=35.0, silent_s=0.05),
    )


async def probe(directory: Path) -> Probed:
    """Return the scripts' health reports. The engine is healthy only if a gateway listens."""
    hangs, listens = (directory / "gateway-hangs").exists(), (directory / "listens").exists()
    if hangs or not listens:
        return {"gateway": False if hangs else None, "engine": None}
    return {"gateway": True, "engine": (directory / "ready").exists()}
