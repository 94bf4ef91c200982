"""Command lines of the scripts in `children`, and a policy that is in a hurry."""

import sys
from pathlib import Path

from cli.supervisor import ChildName, Policy
from gateway.backoff import Backoff

CHILDREN = Path(__file__).parent / "children"


def script(name: str, *arguments: object) -> list[str]:
    """The command line of a script."""
    return [sys.executable, "-I", "-S", str(CHILDREN / name), *map(str, arguments)]


def fake_commands(
    directory: Path, *, deaths: int = 0, gateway: str = ""
) -> dict[ChildName, list[str]]:
    """A gateway, and an engine that first dies `deaths` times."""
    return {
        "gateway": script("fake_gateway.py", directory, gateway),
        "engine": script("fake_engine.py", directory, deaths),
    }


def quick_policy() -> Policy:
    """Milliseconds where the real one has seconds."""
    return Policy(backoff=Backoff(first_delay_s=0.01, base_delay_s=0.01, max_delay_s=0.02))


async def engine_ready(directory: Path) -> bool:
    """Whether the fake engine says it is ready, and a gateway is there to pass it on."""
    return (directory / "ready").exists() and (directory / "listens").exists()
