"""Does an engine answer on its socket? For health checks: `python -m engine.alive SOCKET`.

A socket that somebody listens on is not enough: an engine that hangs still has one. So the check
introduces itself as a gateway would and waits to be welcomed. Exit status 0 is yes, 1 is no.

Knows: the link. Does not know: who asks, or what is done about it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from engine.client import EngineClient

PATIENCE_S = 5.0


async def is_alive(socket: str, patience_s: float = PATIENCE_S) -> bool:
    """Whether an engine welcomes us on `socket` within `patience_s` seconds."""
    client = EngineClient(socket)
    await client.start()
    try:
        await asyncio.wait_for(client.wait_until_welcome(), patience_s)
    except TimeoutError:
        return False
    finally:
        await client.close()
    return True


def main(arguments: Sequence[str]) -> int:
    """The exit status for the engine at `arguments[0]`."""
    return 0 if asyncio.run(is_alive(arguments[0])) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
