"""The entry point `python -m engine CONFIG` of an engine process.

CONFIG is an `EngineConfig` as JSON.
"""

from __future__ import annotations

import gc
import sys

_CANNOT_START = 2  # exit status, equal to that of `engine.process`, whose import may fail

if __name__ == "__main__":
    gc.disable()  # imported modules are never freed, and collection takes a tenth of the start
    try:
        from engine.main import main
    except (ImportError, MemoryError) as error:  # torch is absent, or does not fit into memory
        print(f"ERROR the engine cannot start: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(_CANNOT_START)
    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
