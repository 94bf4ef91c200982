"""Known vulnerabilities of what is locked: asks a service about each package; says it in a line.

`make check` asks in passing: it tells what it learns, and goes on. `make audit` (`--strict`) fails
for a vulnerability, and where nothing could be asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LOCKS = ("gateway", "engine", "dev", "torch")
PATIENCE_S = 60  # in all: some two hundred packages take a quarter of that


@dataclass(frozen=True, slots=True)
class AuditedPackages:
    """What is known of how many packages; `found` has a line for each vulnerability."""

    asked: int
    unknown: int
    found: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether the service knows some of the packages, and no vulnerability."""
        return self.unknown < self.asked and not self.found

    def __str__(self) -> str:
        if self.unknown == self.asked:
            return f"scan: nothing is known: the service has none of {self.asked} packages"
        lines = f"{len(self.found)} known vulnerabilities in {self.asked - self.unknown} packages"
        unknown = f"; {self.unknown} are unknown to the service" if self.unknown else ""
        return "\n".join([f"scan: {lines}{unknown}", *self.found])


def read(report: str) -> AuditedPackages:
    """What pip-audit's JSON says."""
    packages = json.loads(report)["dependencies"]
    found = [
        f"  {one['name']} {one['version']}: {flaw['id']}, "
        f"mended in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in packages
        for flaw in one.get("vulns", ())
    ]
    return AuditedPackages(
        len(packages), sum("skip_reason" in one for one in packages), tuple(found)
    )


def scan() -> AuditedPackages | None:
    """Asks the service; None where it cannot be reached in time."""
    here = Path(__file__).parent
    files = [word for name in LOCKS for word in ("-r", str(here / f"{name}.txt"))]
    audit = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--timeout", "5"]
    command = [*audit, "--disable-pip", "--require-hashes", "--format", "json", *files]
    try:
        asked = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return None
    return read(asked.stdout.decode()) if asked.stdout else None


if __name__ == "__main__":
    learnt = scan()
    sys.stdout.write(f"{learnt or 'scan: the service cannot be reached, so nothing was asked'}\n")
    if "--strict" in sys.argv and not (learnt and learnt.is_clean):
        sys.exit(1)
