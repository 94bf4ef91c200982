#!/bin/bash
# Atheris 3.0.0: libFuzzer compares `-rss_limit_mb` with the peak memory of its process, and on Linux a
# process begins with the peak of the process that forked it, also after `exec`. So a small fuzzer
# that a large process starts (a test runner's worker) ends with status 71, "out of memory".
# The exit status is 0 while this is so.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check atheris==3.0.0
cat > "$place/fuzz.py" <<'PYTHON'
import sys
import time

import atheris

atheris.Setup(sys.argv, lambda data: time.sleep(0.01))
atheris.Fuzz()
PYTHON
cat > "$place/start.py" <<'PYTHON'
import subprocess
import sys

fuzzer = [sys.executable, sys.argv[1], "-runs=400", "-rss_limit_mb=300"]


def status():
    return subprocess.run(fuzzer, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


small = status()
held = b"x" * (500 << 20)
large = status()
print("atheris 3.0.0, at most 300 MiB, started by a process of 10 MiB:", small, "- of 500 MiB:", large)
sys.exit((small, large) != (0, 71))
PYTHON
cd "$place" && venv/bin/python start.py fuzz.py
