"""The conversion of messages to bytes and back: MessagePack by msgspec, with a maximum size."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.link.messages import FromEngine, ToEngine

# Maximum bytes of a message; a million-token prompt with its keys takes 5 MB.
MAX_FRAME_BYTES = 32 << 20

_Message = TypeVar("_Message")


class EncodeError(ValueError):
    """An error: a message is larger than MAX_FRAME_BYTES."""


class DecodeError(ValueError):
    """An error: the bytes are not a valid message."""


class Codec:
    """A codec of the messages of both directions. It has no state but msgspec's coders."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)

    def encode(self, message: ToEngine | FromEngine) -> bytes:
        """Encode a message as one frame. Raises EncodeError if the message is too large."""
        frame = self._encoder.encode(message)
        if len(frame) > self.max_frame_bytes:
            raise EncodeError(f"a frame of {len(frame)} bytes; {self.max_frame_bytes} are allowed")
        return frame

    def decode_to_engine(self, frame: bytes) -> ToEngine:
        """Decode a gateway's message. Raises DecodeError, and no other error, for invalid bytes."""
        return self._decode(self._to_engine, frame)

    def decode_from_engine(self, frame: bytes) -> FromEngine:
        """Decode an engine's message. Raises DecodeError, and no other error, for invalid bytes."""
        return self._decode(self._from_engine, frame)

    def _decode(self, decoder: msgspec.msgpack.Decoder[_Message], frame: bytes) -> _Message:
        if len(frame) > self.max_frame_bytes:
            raise DecodeError(f"a frame of {len(frame)} bytes; {self.max_frame_bytes} are allowed")
        try:
            return decoder.decode(frame)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            # msgspec's error may quote the frame, which contains a prompt.
            raise DecodeError(f"not a message: {type(error).__name__}") from None


def unpack_token_ids(data: bytes) -> npt.NDArray[np.int32]:
    """Unpack token ids into a new array. Raises DecodeError if the last id is incomplete."""
    if len(data) % 4:
        raise DecodeError(f"{len(data)} bytes are no whole number of token ids")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)
