"""Messages in pieces, so that unauthenticated peers can fill little of a server's memory.

ZMQ takes a whole frame into memory before it looks whether who sends it holds the key, and does so
for each connection. So the frames that a server takes are small, and a longer message comes in
several, of which ZMQ hands over all or none.

Knows: sizes. Does not know: what a message says, or how long one may be (`codec`).
"""

from __future__ import annotations

PIECE_BYTES = 32 << 10
MAX_FRAME_BYTES = PIECE_BYTES + 1024  # bytes of an encrypted piece, and of a handshake


def in_pieces(message: bytes) -> list[bytes]:
    """Divide a message into frames that are sent together, mostly a single one."""
    if len(message) <= PIECE_BYTES:
        return [message]
    return [message[at : at + PIECE_BYTES] for at in range(0, len(message), PIECE_BYTES)]
