"""Types a command at `ratoon` in a process of its own, and tells what that has imported."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLD = "imported: "
CODE = f"""
import sys
sys.argv[0] = "ratoon"
from cli.main import main
try:
    main()
finally:
    print({TOLD!r} + " ".join(sys.modules))
"""


def loaded_by(directory: Path, *words: str, **variables: str) -> set[str]:
    """The names of the modules that `ratoon WORDS`, typed in `directory`, has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stdout.splitlines()[-1:]
    assert last, done.stderr
    assert last[0].startswith(TOLD), done.stderr
    return set(last[0].removeprefix(TOLD).split())
