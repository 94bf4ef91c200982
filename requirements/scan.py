"""Ask a service for known vulnerabilities of the locked packages, and print the result.

`make check` prints the result and goes on. `make audit` (`--strict`) fails if a vulnerability is
found, or if the service cannot be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LOCKS = ("gateway", "engine", "dev", "torch")
PATIENCE_S = 60  # for all packages together; about two hundred packages take a quarter of this


@dataclass(frozen=True, slots=True)
class AuditedPackages:
    """The result: numbers of packages, and a line in `found` for each vulnerability."""

    asked: int
    unknown: int
    found: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """True if the service knows some of the packages, and none is vulnerable."""
        return self.unknown < self.asked and not self.found

    def __str__(self) -> str:
        if self.unknown == self.asked:
            return f"scan: nothing is known: the service has none of {self.asked} packages"
        lines = f"{len(self.found)} known vulnerabilities in {self.asked - self.unknown} packages"
        unknown = f"; {self.unknown} are unknown to the service" if self.unknown else ""
        return "\n".join([f"scan: {lines}{unknown}", *self.found])


def read(report: str) -> AuditedPackages:
    """Read the JSON report of pip-audit."""
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
    """Ask the service. Return None if it cannot be reached in time."""
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
