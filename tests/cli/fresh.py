"""A `ratoon` command in a separate process, to see which modules it imports."""

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
    """Run `ratoon WORDS` in `directory`; return the modules that are loaded when the command
    ends.
    """
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
