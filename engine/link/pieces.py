"""The division of messages into frames, which limits the memory that unauthenticated peers can use.

ZMQ reads a whole frame into memory before it checks that the sender has the key. A server therefore
accepts only small frames. A longer message is sent in several frames, which ZMQ delivers together
or not at all.

Elsewhere: the maximum size of a message (`codec`).
"""

from __future__ import annotations

PIECE_BYTES = 32 << 10
MAX_FRAME_BYTES = PIECE_BYTES + 1024  # maximum bytes of an encrypted piece, or of a handshake


def in_pieces(message: bytes) -> list[bytes]:
    """Divide a message into frames that are sent together, usually a single frame."""
    if len(message) <= PIECE_BYTES:
        return [message]
    return [message[at : at + PIECE_BYTES] for at in range(0, len(message), PIECE_BYTES)]
