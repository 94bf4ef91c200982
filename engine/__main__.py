"""The entry point `python -m engine CONFIG` of an engine process.

CONFIG is an `EngineConfig` as JSON.
"""

from __future__ import annotations

import gc
import sys

# The exit status of a failed start. This constant repeats the one in `engine.process`, because
# importing that module may fail.
_CANNOT_START = 2

if __name__ == "__main__":
    gc.disable()  # modules are never freed, so collecting would only slow the start by a tenth
    try:
        from engine.main import main
    except (ImportError, MemoryError) as error:  # torch is not installed, or too little memory
        print(f"ERROR the engine cannot start: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(_CANNOT_START)
    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
