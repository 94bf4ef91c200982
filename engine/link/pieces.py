"""The division of messages, so unauthenticated peers can fill little of a server's memory.

ZMQ reads a whole frame into memory before it checks that the sender holds the key. A server
therefore takes only small frames. A longer message is sent in several frames, which ZMQ delivers
together or not at all.

Elsewhere: how long a message may be (`codec`).
"""

from __future__ import annotations

PIECE_BYTES = 32 << 10
MAX_FRAME_BYTES = PIECE_BYTES + 1024  # bytes of an encrypted piece, and of a handshake


def in_pieces(message: bytes) -> list[bytes]:
    """Divide a message into frames that are sent together, usually a single frame."""
    if len(message) <= PIECE_BYTES:
        return [message]
    return [message[at : at + PIECE_BYTES] for at in range(0, len(message), PIECE_BYTES)]
