"""`python -m engine CONFIG`: one engine process; CONFIG is an `EngineConfig` as JSON."""

from __future__ import annotations

import sys

from engine.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
