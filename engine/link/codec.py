"""The conversion of messages to bytes and back: MessagePack through msgspec, bounded and typed."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.link.messages import FromEngine, ToEngine

MAX_FRAME_BYTES = 32 << 20  # maximum bytes; a million-token prompt with its keys takes 5 MB

_Message = TypeVar("_Message")


class EncodeError(ValueError):
    """An error: a message exceeds the size of a frame."""


class DecodeError(ValueError):
    """An error: bytes are not a message."""


class Codec:
    """A codec of both directions. Holds only msgspec's compiled coders."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)

    def encode(self, message: ToEngine | FromEngine) -> bytes:
        """Encode a message as one frame. Raises EncodeError for too large a message."""
        frame = self._encoder.encode(message)
        if len(frame) > self.max_frame_bytes:
            raise EncodeError(f"a frame of {len(frame)} bytes; {self.max_frame_bytes} are allowed")
        return frame

    def decode_to_engine(self, frame: bytes) -> ToEngine:
        """Decode a gateway's message. Raises only DecodeError, for any bytes."""
        return self._decode(self._to_engine, frame)

    def decode_from_engine(self, frame: bytes) -> FromEngine:
        """Decode an engine's message. Raises only DecodeError, for any bytes."""
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
    """Unpack token ids into a new array. Raises DecodeError on a cut-off id."""
    if len(data) % 4:
        raise DecodeError(f"{len(data)} bytes are no whole number of token ids")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)
